"""What the layers of a model show before any training, and whether its end is expected to fall."""

from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.results import LayerProfile

__all__ = ["LayerProfile", "profile"]
