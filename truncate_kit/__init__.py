"""Find the best layer of a pretrained text encoder, fine-tune it there, strip the rest, export, and measure the gain.

The public names are loaded when first used: importing the package imports no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "LayerProfile": "truncate_kit.analysis",
    "profile": "truncate_kit.analysis",
    "BenchReport": "truncate_kit.bench.results",
    "CombinationReport": "truncate_kit.combine",
    "CombineSettings": "truncate_kit.combine",
    "combine": "truncate_kit.combine.bert_lc",
    "combined_encoder": "truncate_kit.combine",
    "ContrastiveResult": "truncate_kit.contrastive",
    "ContrastiveSettings": "truncate_kit.contrastive",
    "finetune_contrastive": "truncate_kit.contrastive",
    "layer_weights": "truncate_kit.contrastive",
    "load_triplets": "truncate_kit.data",
    "raw_texts": "truncate_kit.data",
    "diagnose": "truncate_kit.doctor",
    "load_pairs": "truncate_kit.data",
    "read_pairs": "truncate_kit.data",
    "read_texts": "truncate_kit.data",
    "Encoder": "truncate_kit.encoders",
    "load_encoder": "truncate_kit.encoders",
    "paper_parameters": "truncate_kit.encoders",
    "parameters_kept": "truncate_kit.encoders",
    "random_encoder": "truncate_kit.encoders",
    "save_encoder": "truncate_kit.encoders",
    "truncate": "truncate_kit.encoders",
    "Processes": "truncate_kit.engines",
    "RayCluster": "truncate_kit.engines",
    "ExportReport": "truncate_kit.export",
    "OnnxEncoder": "truncate_kit.export",
    "export_onnx": "truncate_kit.export",
    "AdaptationSettings": "truncate_kit.priors",
    "WordPrior": "truncate_kit.priors",
    "adapt": "truncate_kit.priors",
    "FrozenReport": "truncate_kit.frozen",
    "FrozenSettings": "truncate_kit.frozen",
    "finetune_frozen": "truncate_kit.frozen",
    "StreamedCKA": "truncate_kit.similarity",
    "layer_states": "truncate_kit.representations",
    "cka_matrix": "truncate_kit.similarity",
    "read_study": "truncate_kit.study",
    "run_study": "truncate_kit.study",
    "find_sts": "truncate_kit.data",
    "find_transfer": "truncate_kit.data",
    "read_retrieval": "truncate_kit.data",
    "score_retrieval": "truncate_kit.suites",
    "score_sts": "truncate_kit.suites",
    "score_transfer": "truncate_kit.suites",
    "SweepResult": "truncate_kit.sweep",
    "SweepSettings": "truncate_kit.sweep",
    "finetune": "truncate_kit.sweep",
    "encode_file": "truncate_kit.serving",
    "Evaluation": "truncate_kit.training",
    "TrainingSettings": "truncate_kit.training",
    "evaluate": "truncate_kit.training",
    "VectorFormat": "truncate_kit.vectors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
