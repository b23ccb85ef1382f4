"""Find the best layer of a pretrained text encoder, or the few blocks that are enough; train, export, measure the gain.

The public names are loaded when first used: importing the package imports no torch.
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Before ONNX Runtime is loaded, here, in workers and in programs that are started: since 1.31 it gives the machine a
# number under ~/.cache, notes what runs, and reports that to its makers. Whoever wants that sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_NAMES = {  # by module
    "analysis.layer_profile": "LayerProfile",
    "analysis.profiling": "profile",
    "analysis.settings": "AnalysisSettings",
    "bench.bench_report": "BenchReport",
    "methods.bert_lc.bert_lc": "combine",
    "methods.bert_lc.model": "combined_encoder",
    "methods.bert_lc.report": "CombinationReport",
    "methods.bert_lc.settings": "CombineSettings",
    "methods.contrast.contrastive_result": "ContrastiveResult",
    "methods.contrast.running": "finetune_contrastive",
    "methods.contrast.settings": "ContrastiveSettings",
    "methods.contrast.weights": "layer_weights",
    "data": "complete_splits find_sts find_transfer load_pairs load_triplets raw_texts read_pairs read_retrieval "
    "read_texts",
    "methods.distill.aim": "find_aim",
    "methods.distill.distilling": "distill",
    "methods.distill.distill_result": "DistillResult",
    "methods.distill.settings": "Budget DistillSettings",
    "methods.distill.subsets": "search_subsets",
    "methods.distill.texts": "RawTexts",
    "doctor": "diagnose",
    "models": "Encoder keep keep_words load_encoder paper_parameters parameters_kept random_encoder save_encoder "
    "truncate",
    "engines": "Processes RayCluster",
    "errors": "TruncateKitError",
    "evaluation.graded": "Evaluation evaluate",
    "export.exporting": "export_onnx",
    "export.export_report": "ExportReport",
    "export.runtime": "OnnxEncoder",
    "export.settings": "ExportSettings",
    "methods.frozen.frozen_report": "FrozenReport",
    "methods.frozen.run": "finetune_frozen",
    "methods.frozen.settings": "FrozenSettings",
    "evaluation.mteb_report": "MtebComparison MtebReport",
    "evaluation.running": "evaluate_mteb",
    "methods.priors.adapting": "AdaptationSettings adapt",
    "methods.priors.words": "WordPrior",
    "representations": "layer_states",
    "evaluation.comparing": "RetrievalComparison compare",
    "evaluation.evaluating": "RetrievalScore evaluate_retrieval",
    "serving": "encode_file",
    "analysis.cka": "cka_matrix",
    "analysis.streaming": "StreamedCKA",
    "methods.study.study_file": "read_study",
    "methods.study.running": "run_study",
    "evaluation.retrieval": "score_retrieval",
    "evaluation.sts": "score_sts",
    "evaluation.transfer": "score_transfer",
    "methods.tmft.finetune": "finetune",
    "methods.tmft.predicting": "sweep_prediction",
    "methods.tmft.sweep_result": "SweepResult",
    "methods.tmft.settings": "SweepSettings",
    "training.configuration": "TrainingSettings",
    "training.judged_pairs": "read_judged",
    "vectors": "VectorFormat",
}
_PUBLIC = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
