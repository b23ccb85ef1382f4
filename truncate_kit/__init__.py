"""Truncate pretrained text encoders to their best layer or a few blocks; train, export and benchmark them.

Names are imported on first use, without torch until then. For an encoder, functions also take a model's name or folder;
for pairs, whatever `load_pairs` takes; for a path, text.
"""

import functools
import inspect
import os
import pkgutil
import re
from collections.abc import Callable
from importlib import import_module
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from truncate_kit.core.results import DRAWERS, VERSION

__version__ = VERSION

# Unless this is set, ONNX Runtime 1.31 and newer stores a machine id in ~/.cache and sends usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

DRAWERS |= {
    "card": f"{__name__}.report.card:card_text",
    "copied": f"{__name__}.report.card:write_card",
    "measured": f"{__name__}.report.card:add_result",
    "frame": f"{__name__}.report.view:frame_of",
    "notebook": f"{__name__}.report.page:in_notebook",
    "plot": f"{__name__}.report.chart:figure_of",
    "repr": f"{__name__}.report.view:words_of",
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
    "data.pairs": "TextPair complete_splits load_pairs read_pairs",
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
    "export.runtime": "OnnxEncoder OpenVinoEncoder",
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
_MODEL = f"{__name__}.models.loading:load_encoder"
_READERS: dict[str, tuple[Any, str]] = {  # by declared type
    "Encoder": (object, _MODEL),
    "TextEncoder": (str | Path, _MODEL),
    "PairSplits": (object, f"{__name__}.data.pairs:load_pairs"),
    "PairSet": (object, f"{__name__}.data.pairs:read_pairs"),
    "Sequence[TextPair]": (object, f"{__name__}.data.pairs:listed_pairs"),
    "Iterable[TextPair]": (object, f"{__name__}.data.pairs:listed_pairs"),
    "Iterable[str]": (str | Path, f"{__name__}.data.tables:read_texts"),
    "Path": (str, "pathlib:Path"),
}

__all__ = ["__version__", *_PUBLIC]
__doc__ = f"{__doc__}" + "".join(
    f"\n{topic}: {', '.join(chain.from_iterable(_NAMES[module].split() for module in modules))}"
    for topic, modules in groupby(_NAMES, lambda module: module.partition(".")[0])
)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value = _reading(value) if inspect.isfunction(value) else value
    return value


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads arguments by their declared types, see `_READERS`."""
    readers: dict[str, tuple[Any, str]] = {}
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        declared = parameter.annotation
        declared = declared if isinstance(declared, str) else inspect.formatannotation(declared)
        kinds = re.sub(r"\w+\.", "", declared).split(" | ")
        found = [_READERS[kind] for kind in kinds if kind in _READERS and "str" not in kinds]
        readers |= {name: found[0]} if found else {}

    def read(name: str, value: Any) -> Any:
        types, reader = readers.get(name, ((), ""))
        own = any(base.__module__.partition(".")[0] == __name__ for base in type(value).__mro__)
        return value if own or value is None or not isinstance(value, types) else pkgutil.resolve_name(reader)(value)

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        bound = signature.bind(*values, **named)
        for name, value in bound.arguments.items():
            bound.arguments[name] = read(name, value)
        return function(*bound.args, **bound.kwargs)

    call.__module__ = __name__  # for pickle
    return call if readers else function


def __dir__() -> list[str]:
    return sorted(__all__)
