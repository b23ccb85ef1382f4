"""JSON Schemas of what `--json` prints, a file a command; `python -m truncate_kit_cli.schemas` writes them anew."""

import json
from importlib import import_module
from importlib.resources import files
from pathlib import Path

RESULTS = {
    "analyze": "analysis.layer_profile.LayerProfile",
    "finetune": "methods.tmft.sweep_result.SweepResult",
    "export": "export.export_report.ExportReport",
    "bench": "bench.bench_report.BenchReport",
    "distill": "methods.distill.result.DistillResult",
    "contrast": "methods.contrast.contrastive_result.ContrastiveResult",
    "freeze": "methods.frozen.frozen_report.FrozenReport",
    "combine": "methods.bert_lc.result.CombinationReport",
    "cut": "training.cutting.CutResult",
    "evaluate": "evaluation.ModelScore retrieval.evaluating.RetrievalScore",  # and the reports that the page shows
    "compare": "evaluation.comparing.RetrievalComparison",
    "encode": "serving.encoded_file.EncodedFile",
    "study": "methods.study.study_result.StudyResult",
    "report": "report.writing.PageReport",
    "status": "workspace.Contents",
    "doctor": "doctor.Diagnosis",
}
"""What each command prints, one of these classes; `demo` has no `--json`."""


def schema_text(command: str) -> str:
    """The schema of a command's JSON, as it is in the package."""
    return files("truncate_kit").joinpath("schemas", f"{command}.json").read_text(encoding="utf-8")


def made_schema(command: str) -> str:
    """The same, made from the classes."""
    from truncate_kit.report.run import report_kinds
    from truncate_kit.results import json_schema

    places = (name.rpartition(".") for name in RESULTS[command].split())
    kinds = [getattr(import_module(f"truncate_kit.{module}"), kind) for module, _, kind in places]
    if command == "evaluate":
        kinds += [kind() for kind in report_kinds().values()]
    return json.dumps(json_schema(command, kinds), indent=1) + "\n"


if __name__ == "__main__":
    for command in RESULTS:
        place = Path(str(files("truncate_kit"))) / "schemas" / f"{command}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(made_schema(command), encoding="utf-8")
