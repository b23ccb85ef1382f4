"""Find the best layer of a pretrained text encoder, fine-tune it there, strip the rest, export, and measure the gain.

The public names are loaded when first used: importing the package imports no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "AnalysisSettings": "truncate_kit.analysis",
    "LayerProfile": "truncate_kit.analysis",
    "profile": "truncate_kit.analysis",
    "BenchReport": "truncate_kit.bench.results",
    "CombinationReport": "truncate_kit.combine.report",
    "CombineSettings": "truncate_kit.combine.settings",
    "combine": "truncate_kit.combine.bert_lc",
    "combined_encoder": "truncate_kit.combine.model",
    "ContrastiveResult": "truncate_kit.contrastive.results",
    "ContrastiveSettings": "truncate_kit.contrastive.settings",
    "finetune_contrastive": "truncate_kit.contrastive.running",
    "layer_weights": "truncate_kit.contrastive.weights",
    "load_triplets": "truncate_kit.data",
    "raw_texts": "truncate_kit.data",
    "diagnose": "truncate_kit.doctor.diagnosis",
    "load_pairs": "truncate_kit.data",
    "read_pairs": "truncate_kit.data",
    "read_texts": "truncate_kit.data",
    "Encoder": "truncate_kit.encoders",
    "keep_words": "truncate_kit.encoders",
    "load_encoder": "truncate_kit.encoders",
    "paper_parameters": "truncate_kit.encoders",
    "parameters_kept": "truncate_kit.encoders",
    "random_encoder": "truncate_kit.encoders",
    "save_encoder": "truncate_kit.encoders",
    "truncate": "truncate_kit.encoders",
    "Processes": "truncate_kit.engines",
    "RayCluster": "truncate_kit.engines",
    "ExportReport": "truncate_kit.export.results",
    "OnnxEncoder": "truncate_kit.export.runtime",
    "export_onnx": "truncate_kit.export.exporting",
    "AdaptationSettings": "truncate_kit.priors.adapting",
    "WordPrior": "truncate_kit.priors.words",
    "adapt": "truncate_kit.priors.adapting",
    "FrozenReport": "truncate_kit.frozen.results",
    "FrozenSettings": "truncate_kit.frozen.settings",
    "finetune_frozen": "truncate_kit.frozen.run",
    "RetrievalComparison": "truncate_kit.retrieval.comparing",
    "RetrievalScore": "truncate_kit.retrieval.evaluating",
    "compare": "truncate_kit.retrieval.comparing",
    "evaluate_retrieval": "truncate_kit.retrieval.evaluating",
    "StreamedCKA": "truncate_kit.similarity.streaming",
    "layer_states": "truncate_kit.representations",
    "cka_matrix": "truncate_kit.similarity.cka",
    "read_study": "truncate_kit.study.reading",
    "run_study": "truncate_kit.study.running",
    "find_sts": "truncate_kit.data",
    "find_transfer": "truncate_kit.data",
    "read_retrieval": "truncate_kit.data",
    "score_retrieval": "truncate_kit.suites.retrieval",
    "score_sts": "truncate_kit.suites.sts",
    "score_transfer": "truncate_kit.suites.transfer",
    "SweepResult": "truncate_kit.sweep.results",
    "SweepSettings": "truncate_kit.sweep.settings",
    "finetune": "truncate_kit.sweep.finetune",
    "encode_file": "truncate_kit.serving",
    "Evaluation": "truncate_kit.evaluation",
    "TrainingSettings": "truncate_kit.training.configuration",
    "evaluate": "truncate_kit.evaluation",
    "VectorFormat": "truncate_kit.vectors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
