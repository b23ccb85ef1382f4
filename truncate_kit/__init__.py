"""Truncate pretrained text encoders to their best layer or a few blocks; train, export and benchmark them.

Names are imported on first use, so importing the package imports no torch.
"""

import os
from importlib import import_module
from typing import Any

from truncate_kit.core.results import DRAWERS, VERSION

__version__ = VERSION

# Unless this is set, ONNX Runtime 1.31 and newer stores a machine id in ~/.cache and sends usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

DRAWERS |= {
    "card": f"{__name__}.report.card:card_text",
    "copied": f"{__name__}.report.card:write_card",
    "measured": f"{__name__}.report.card:add_result",
    "notebook": f"{__name__}.report.page:in_notebook",
    "save": f"{__name__}.models.pipeline:save_encoder",
    "push": f"{__name__}.export.exporting:push_folder",
}

_NAMES = {  # by module
    "analysis.cka": "cka_matrix StreamedCKA",
    "analysis.profile": "profile",
    "analysis.result": "LayerProfile AnalysisSettings",
    "bench.result": "BenchSettings BenchReport",
    "core.errors": "TruncateKitError",
    "core.parallel": "Processes RayCluster",
    "core.vectors": "VectorFormat",
    "data.pairs": "complete_splits load_pairs read_pairs",
    "data.retrieval": "read_retrieval",
    "data.suites": "find_sts find_transfer",
    "data.tables": "read_texts",
    "data.triplets": "load_triplets raw_texts",
    "doctor": "diagnose",
    "evaluation": "SuiteReport",
    "evaluation.graded": "Evaluation evaluate score_sts",
    "evaluation.mteb": "evaluate_mteb",
    "evaluation.retrieval": "compare evaluate_retrieval score_retrieval",
    "evaluation.transfer": "TransferSettings score_transfer",
    "export.encode": "encode_file",
    "export.exporting": "export_onnx",
    "export.record": "ExportReport ExportSettings",
    "export.runtime": "OnnxEncoder",
    "methods.bert_lc.combine": "combine combined_encoder",
    "methods.bert_lc.settings": "CombinationReport CombineSettings",
    "methods.contrast.run": "finetune_contrastive layer_weights",
    "methods.contrast.settings": "ContrastiveResult ContrastiveSettings",
    "methods.distill.distilling": "find_aim distill",
    "methods.distill.settings": "DistillResult Budget DistillSettings",
    "methods.distill.subsets": "search_subsets",
    "methods.distill.learning": "RawTexts",
    "methods.frozen.run": "finetune_frozen",
    "methods.frozen.settings": "FrozenReport FrozenSettings",
    "methods.priors": "adapt WordPrior",
    "methods.study.plan": "read_study",
    "methods.study.running": "run_study",
    "methods.tmft.finetune": "finetune sweep_prediction",
    "methods.tmft.settings": "SweepResult SweepSettings",
    "models.encoder": "Encoder",
    "models.loading": "load_encoder random_encoder",
    "models.pipeline": "save_encoder",
    "models.truncation": "layer_states keep keep_words paper_parameters parameters_kept truncate",
    "training.queries": "read_judged",
    "training.settings": "AdaptationSettings TrainingSettings",
}
_PUBLIC = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
