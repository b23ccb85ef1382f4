"""`truncate-kit demo`: both jobs in one go, on what comes with the package."""

from typing import TYPE_CHECKING

from . import options
from .bench import bench
from .distill import distill
from .finetune import finetune
from .output import say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.bench.bench_report import BenchReport

EPOCHS, SEEDS = 3, 1  # small enough for a few minutes on two cores; real work takes the defaults of finetune
WHOLE, HALF, PASSES = "mini-bert", "4", 3  # of eight blocks; passes over the few thousand texts that come with it


def demo(
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE
    / "demo",  # of its own: what the user has made in the usual one stays
) -> None:
    """Cut a miniature ELECTRA from the top, and a miniature BERT to half its blocks: some two minutes, no download."""
    from truncate_kit.data.pairs import BUNDLED, BUNDLED_FOLDER
    from truncate_kit.naming import DEFAULT_MINIATURE
    from truncate_kit.report.writing import write_page

    from .analyze import analyze
    from .export import export

    say(f"1 of 5  analyze {DEFAULT_MINIATURE}: what do its layers show before any training?")
    analyze(model=DEFAULT_MINIATURE, data=BUNDLED, folder=folder)
    say(f"\n2 of 5  finetune --layer auto --epochs {EPOCHS} --seeds {SEEDS}: find the best layer, train there.")
    finetune(model=DEFAULT_MINIATURE, data=BUNDLED, epochs=EPOCHS, seeds=SEEDS, threads=threads, folder=folder)
    say("\n3 of 5  export --onnx: one graph from token ids to the sentence vector, checked.")
    export(onnx=True, folder=folder)
    say("\n4 of 5  bench --quick: the lean model against the full one, trained with the same budget.")
    _summary(Workspace(folder), bench(quick=True, threads=threads, folder=folder))
    say(f"\n5 of 5  distill {WHOLE} --blocks {HALF}: half of the blocks learn the vectors of all.")
    texts = BUNDLED_FOLDER / "train.csv"
    distill(model=WHOLE, texts=[texts], blocks=HALF, epochs=PASSES, threads=threads, folder=folder / "distilled")
    say("")
    say("Next, your own model: truncate-kit analyze MODEL --data PAIRS.csv, then finetune, export --onnx, bench;")
    say("or, where none drop at its end, or there are no scores: truncate-kit distill MODEL --texts sentences.txt.")
    say("")
    for part, what in ((folder, "All of it"), (folder / "distilled", "The BERT")):
        say(f"{what} on one page, with figures: {write_page(part).page}")


def _summary(workspace: Workspace, report: "BenchReport") -> None:
    """What a newcomer wants to know, in one table and some sentences."""
    from truncate_kit.hardware import QUIET
    from truncate_kit.methods.tmft.sweep_result import SweepResult

    sweep = SweepResult.read(workspace.sweep_file)
    lean, full = sweep.lean, sweep.full
    rows = [
        ("layers", f"{lean.layer}", f"{full.layer}", f"{full.layer / max(1, lean.layer):.1f}× fewer"),
        _sizes("parameters", lean.parameters, full.parameters, "fewer"),
    ]
    sizes = [model.weights_bytes for model in report.models]
    if len(sizes) == 2 and sizes[0] is not None and sizes[1] is not None:
        rows.append(_sizes("weights on disk, kB", sizes[0] // 1000, sizes[1] // 1000, "smaller"))
    quality = report.quality
    if quality is not None:
        difference = f"{quality.difference:+.1f} [{quality.low:+.1f}, {quality.high:+.1f}]"
        rows.append(("score (Spearman × 100)", f"{quality.lean:.1f}", f"{quality.full:.1f}", difference))
    rows += _speeds(report)
    say("")
    table("What truncation gained", ("", "lean", "full", "lean against full"), rows)
    say("Speed: lean in ONNX Runtime against full in torch, both fp32; fewer layers × the other runtime in brackets.")
    busy = report.machine.others_busy
    if busy is not None and busy > QUIET:
        say(f"Other processes took {busy:.0%} of this machine meanwhile: these speeds are rough.")
    say(f"The lean model is an ordinary sentence-transformers folder: SentenceTransformer({str(workspace.lean)!r}).")


def _sizes(label: str, lean: int, full: int, how: str) -> tuple[str, str, str, str]:
    return label, f"{lean:,}", f"{full:,}", f"{full / lean:.2f}× {how}"


def _speeds(report: "BenchReport") -> list[tuple[str, str, str, str]]:
    """Time of one sentence and sentences a second, each with what depth and what the runtime gave."""
    rows = []
    for label, scenario in (("one sentence, ms", "one sentence"), ("sentences per second", "real set")):
        ours = report.timing("lean", "onnx-fp32", scenario)
        theirs = report.timing("full", "torch-fp32", scenario)
        gain = next((gain for gain in report.gains if (gain.scenario, gain.backend) == (scenario, "onnx-fp32")), None)
        if ours is None or theirs is None or gain is None:
            continue
        if scenario == "one sentence":
            cells = f"{1000 * ours.p50_seconds:.2f}", f"{1000 * theirs.p50_seconds:.2f}"
        else:
            cells = f"{ours.sentences_per_second:,.0f}", f"{theirs.sentences_per_second:,.0f}"
        rows.append((label, *cells, f"{gain.total:.1f}× faster ({gain.depth:.1f} × {gain.runtime:.1f})"))
    return rows
