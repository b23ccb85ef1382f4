"""`truncate-kit demo`: the four steps in one go, on what comes with the package."""

from typing import Annotated

import typer

from .bench import bench
from .finetune import finetune
from .options import DEFAULT_OUT, OutOpt
from .output import say, table
from .workspace import Workspace

EPOCHS, SEEDS = 3, 1  # small enough for a few minutes on two cores; real work takes the defaults of finetune


def demo(
    out: OutOpt = DEFAULT_OUT,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; by default all.")] = None,
) -> None:
    """Analyze, fine-tune, export and bench the bundled miniature ELECTRA: about three minutes, no download."""
    from truncate_kit.data import BUNDLED
    from truncate_kit.encoders import DEFAULT_MINIATURE

    from .analyze import analyze
    from .export import export

    say(f"1 of 4  analyze {DEFAULT_MINIATURE}: what do its layers show before any training?")
    analyze(model=DEFAULT_MINIATURE, data=BUNDLED, out=out)
    say(f"\n2 of 4  finetune --layer auto --epochs {EPOCHS} --seeds {SEEDS}: find the best layer, train there.")
    finetune(model=DEFAULT_MINIATURE, data=BUNDLED, epochs=EPOCHS, seeds=SEEDS, threads=threads, out=out)
    say("\n3 of 4  export --onnx: one graph from token ids to the sentence vector, checked.")
    export(onnx=True, out=out)
    say("\n4 of 4  bench --quick: the lean model against the full one, trained with the same budget.")
    bench(quick=True, threads=threads, out=out)
    _summary(Workspace(out))


def _summary(workspace: Workspace) -> None:
    """What a newcomer wants to know, in one table and two sentences."""
    from truncate_kit.bench import BenchReport
    from truncate_kit.sweep import SweepResult

    sweep, report = SweepResult.read(workspace.out / "sweep.json"), BenchReport.read(workspace.bench_report)
    lean, full = sweep.lean, sweep.full
    rows = [
        ("layers", f"{lean.layer}", f"{full.layer}", f"{full.layer / max(1, lean.layer):.1f}× fewer"),
        (
            "parameters",
            f"{lean.parameters:,}",
            f"{full.parameters:,}",
            f"{full.parameters / lean.parameters:.2f}× fewer",
        ),
    ]
    quality = report.quality
    if quality is not None:
        difference = f"{quality.difference:+.1f} [{quality.low:+.1f}, {quality.high:+.1f}]"
        rows.append(("similarity score (Spearman × 100)", f"{quality.lean:.1f}", f"{quality.full:.1f}", difference))
    for label, scenario, latency in (
        ("one sentence, milliseconds (ONNX; full: torch)", "one sentence", True),
        ("sentences per second (ONNX; full: torch)", "real set", False),
    ):
        ours = report.timing("lean", "onnx-fp32", scenario)
        theirs = report.timing("full", "torch-fp32", scenario)
        if ours is None or theirs is None:
            continue
        if latency:
            pair = 1000 * ours.p50_seconds, 1000 * theirs.p50_seconds
            rows.append((label, f"{pair[0]:.2f}", f"{pair[1]:.2f}", f"{pair[1] / pair[0]:.1f}× faster"))
        else:
            rates = ours.sentences_per_second, theirs.sentences_per_second
            rows.append((label, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[0] / rates[1]:.1f}× faster"))
    say("")
    table("What truncation gained", ("", "lean", "full", "lean against full"), rows)
    say(f"The lean model is an ordinary sentence-transformers folder: SentenceTransformer({str(workspace.lean)!r}).")
    say("Next, your own model: truncate-kit analyze MODEL --data PAIRS.csv, then finetune, export --onnx, bench.")
