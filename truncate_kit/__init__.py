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
    "combination.bert_lc": "combine",
    "combination.model": "combined_encoder",
    "combination.report": "CombinationReport",
    "combination.settings": "CombineSettings",
    "contrastive.contrastive_result": "ContrastiveResult",
    "contrastive.running": "finetune_contrastive",
    "contrastive.settings": "ContrastiveSettings",
    "contrastive.weights": "layer_weights",
    "data": "complete_splits find_sts find_transfer load_pairs load_triplets raw_texts read_pairs read_retrieval "
    "read_texts",
    "distillation.aim": "find_aim",
    "distillation.distilling": "distill",
    "distillation.distill_result": "DistillResult",
    "distillation.settings": "Budget DistillSettings",
    "distillation.subsets": "search_subsets",
    "distillation.texts": "RawTexts",
    "doctor.diagnosis": "diagnose",
    "encoders": "Encoder keep keep_words load_encoder paper_parameters parameters_kept random_encoder save_encoder "
    "truncate",
    "engines": "Processes RayCluster",
    "errors": "TruncateKitError",
    "evaluation": "Evaluation evaluate",
    "export.exporting": "export_onnx",
    "export.export_report": "ExportReport",
    "export.runtime": "OnnxEncoder",
    "export.settings": "ExportSettings",
    "frozen.frozen_report": "FrozenReport",
    "frozen.run": "finetune_frozen",
    "frozen.settings": "FrozenSettings",
    "mteb.mteb_report": "MtebComparison MtebReport",
    "mteb.running": "evaluate_mteb",
    "priors.adapting": "AdaptationSettings adapt",
    "priors.words": "WordPrior",
    "representations": "layer_states",
    "retrieval.comparing": "RetrievalComparison compare",
    "retrieval.evaluating": "RetrievalScore evaluate_retrieval",
    "serving": "encode_file",
    "similarity.cka": "cka_matrix",
    "similarity.streaming": "StreamedCKA",
    "study.study_file": "read_study",
    "study.running": "run_study",
    "suites.retrieval": "score_retrieval",
    "suites.sts": "score_sts",
    "suites.transfer": "score_transfer",
    "sweep.finetune": "finetune",
    "sweep.predicting": "sweep_prediction",
    "sweep.sweep_result": "SweepResult",
    "sweep.settings": "SweepSettings",
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
