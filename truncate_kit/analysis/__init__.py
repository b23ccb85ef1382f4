"""What the layers of a model show before any training, and whether its end is expected to fall."""

from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings

__all__ = ["AnalysisSettings", "LayerProfile", "profile"]
