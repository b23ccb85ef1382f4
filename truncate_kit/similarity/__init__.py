"""How alike layers are: kernels, HSIC, CKA in memory and streamed, label-free scores, drop prediction."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "cka_matrix": "cka",
    "StreamedCKA": "streaming",
    "compare_layers": "compare",
    "Curve": "compare",
    "LayerComparison": "compare",
    "relative_layers": "compare",
    "predict_drop": "drop",
    "DropPrediction": "drop",
    "Sign": "drop",
    "hsic_biased": "hsic",
    "hsic_unbiased": "hsic",
    "linear_gram": "kernels",
    "rbf_gram": "kernels",
    "center_gram": "kernels",
    "u_center_gram": "kernels",
    "outlier_dimensions": "preparing",
    "standardise": "preparing",
    "without_outliers": "preparing",
    "LayerStateScores": "scores",
    "LayerTokenScores": "scores",
    "StateScores": "scores",
    "TokenScores": "scores",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
