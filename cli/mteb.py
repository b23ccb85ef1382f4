"""What `truncate-kit evaluate --mteb` runs and shows."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from truncate_kit.evaluation.registry import MeasuredModel

from .output import progress_bar
from .suites import Evaluated, show_report, write_report


def named_tasks(names: Sequence[str]) -> list[Any]:
    """The tasks of these names, before anything is loaded. Raises `UsageError`."""
    # mteb makes the folder of its own result cache when it is imported, which nobody asked for.
    os.environ.setdefault("MTEB_CACHE", tempfile.gettempdir())
    from truncate_kit.evaluation.mteb import find_tasks

    return find_tasks(names)


def run_mteb(
    tasks: Sequence[Any], run: Evaluated, against: str | None, max_length: int | None, device: str | None
) -> None:
    """Score the model, and the one to compare it with; write the result into the workspace, and show it.

    max_length: tokens that the one to compare with reads of each text, too.
    """
    from truncate_kit.evaluation.mteb import MtebComparison, evaluate_mteb
    from truncate_kit.export.runtime import OnnxEncoder, load_text_encoder

    encoders = [(run.name, run.encoder)]
    if against is not None:
        encoders.append(
            (against, load_text_encoder(against, max_length=max_length, threads=run.threads, device=device))
        )
    with run.workspace.held(), progress_bar(quiet=run.workspace.quiet) as progress:
        lean, *others = (
            evaluate_mteb(
                encoder,
                tasks,
                model=name,
                runtime="onnx" if isinstance(encoder, OnnxEncoder) else "torch",
                progress=progress,
            )
            for name, encoder in encoders
        )
        report = replace(MtebComparison.of(others[0], lean) if others else lean, measured=MeasuredModel.of(run.name))
        name = "mteb-comparison" if others else "mteb"
        path = write_report(report, run.workspace, name)
    codes = any(encoder.heads is not None for _, encoder in encoders)
    show_report(report, run.workspace, path, codes=codes)
