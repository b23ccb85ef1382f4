"""What pretraining did, step by step: losses, untrained and trained scores of each layer, and CKA to the BERT.

    python -m benchmarks.miniatures.evidence --models FOLDER_OF_PRETRAINING --data FOLDER_OF_STSB_EN
    python -m benchmarks.miniatures.evidence --models FIRST_FOLDER FOLDER_OF_WHAT_WENT_ON …

Reads the snapshots that `pretrain.py --keep` left, and the finished models; random weights are step 0. Where a run went
on in another folder, steps are counted through. For each: the
untrained Spearman of every layer on STS Benchmark test, debiased CKA to the finished BERT, what `truncate-kit analyze`
predicts, and the dev score of every layer after one short run that trains all of them at once. Each is measured once:
the command may be stopped at any time. It writes `snapshots.csv` and `falls.csv`, copies what pretraining wrote about
itself, and draws the losses and the falls. The bundled models go through `truncate-kit study
benchmarks/miniatures/study.toml` with DATA set, for TMFT at every layer.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import new_parser, read_rows, spread_out, write_rows
from benchmarks.miniatures.bundle import RUNS
from benchmarks.panels import open_panel, whole_axis, write_panel
from benchmarks.records import trial_runner
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings
from truncate_kit.data import load_pairs
from truncate_kit.files import write_json
from truncate_kit.methods.study.plan import StudyModel
from truncate_kit.methods.study.running import load_model
from truncate_kit.models import load_encoder
from truncate_kit.training.settings import TrainingSettings

HERE = Path(__file__).parent
PAIRS, RATE = 1280, 3e-4  # of the short run that trains all layers at once


def runs_of(models: Sequence[Path], run: str) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """A run and those that went on from it: folder, steps behind it when it began, what `pretrain.py` wrote of it."""
    before = 0
    for folder in models:
        written = json.loads((folder / f"{run}.json").read_text())
        yield folder, before, written
        before += written["steps"]


def moments(models: Sequence[Path]) -> dict[tuple[str, int], Path]:
    """The folder of each model at each step that was kept, in their order; the last one is the finished model.

    models: folders of runs, each of which went on from the one before; steps are counted through. Step 0, random
    weights, has the first finished model's folder, for its shape; a discriminator that began as a BERT has none.
    """
    found = {}
    for run, names in RUNS.items():
        for folder, before, written in runs_of(models, run):
            for name in names:
                if not before and (name != "electra-discriminator" or written["start"] is None):
                    found[name, 0] = folder / name
                for snapshot in (folder / "snapshots").glob(f"{name}-*"):
                    found[name, before + int(snapshot.name.removeprefix(f"{name}-"))] = snapshot
                found[name, before + written["steps"]] = folder / name
    return dict(sorted(found.items(), key=lambda moment: moment[0][1]))


def loss_rows(models: Sequence[Path], run: str) -> list[dict[str, Any]]:
    """Losses on held-out text over all steps of a run and of those that went on from it."""
    rows: list[dict[str, Any]] = []
    for folder, before, _ in runs_of(models, run):
        losses = read_rows(folder / f"{run}-losses.csv")
        rows += [row | {"step": before + int(row["step"])} for row in losses]
    return rows


def measure(folder: Path, step: int, reference: Path, data: Path, work: Path) -> dict[str, Any]:
    """All figures of one moment by layer."""
    weights = "pretrained" if step else "random"
    encoder = load_model(StudyModel(model=str(folder), name=folder.name, weights=weights))
    splits = load_pairs(str(data))
    seen = profile(
        encoder,
        pairs=list(splits.split("test")),
        reference=load_encoder(reference),
        settings=AnalysisSettings(intervals=0),
    )
    small = replace(splits, train=spread_out(splits.train, PAIRS))
    runner = trial_runner(encoder, small, TrainingSettings(epochs=1, learning_rate=RATE), work, name=folder.name)
    with runner.store.open():
        (trained,) = runner.rank(["multi-exit"], range(encoder.depth + 1), 0)
    assert seen.drop is not None
    return {
        "untrained": list(seen.spearman or ()),
        "cka": list(seen.cka.values),
        "trained": [trained[layer] for layer in range(encoder.depth + 1)],
        "predicted_from": seen.drop.from_layer,
        "confidence": seen.drop.confidence,
    }


def rows_of(model: str, step: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each layer."""
    return [
        {
            "model": model,
            "step": step,
            "layer": layer,
            "untrained_test": f"{untrained:.2f}",
            "all_layers_dev": f"{trained:.2f}",
            "cka_to_bert": f"{cka:.3f}",
            "predicted_from": "" if found["predicted_from"] is None else found["predicted_from"],
            "confidence": f"{found['confidence']:.2f}",
        }
        for layer, (untrained, trained, cka) in enumerate(
            zip(found["untrained"], found["trained"], found["cka"], strict=True)
        )
    ]


def last_against_best(values: Sequence[float]) -> float:
    """How far the last layer lies from the best one, 0 or less."""
    return values[-1] - max(values)


def falls(found: dict[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each moment: the last layer against the best one, and what the analysis said of it."""
    return [
        {
            "model": model,
            "step": step,
            "best_layer": figures["trained"].index(max(figures["trained"])),
            "best_dev": f"{max(figures['trained']):.2f}",
            "trained": f"{last_against_best(figures['trained']):.2f}",
            "untrained": f"{last_against_best(figures['untrained']):.2f}",
            "cka": f"{last_against_best(figures['cka']):.3f}",
            "predicted_from": "" if figures["predicted_from"] is None else figures["predicted_from"],
            "confidence": f"{figures['confidence']:.2f}",
        }
        for (model, step), figures in sorted(found.items())
    ]


def draw_falls(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """How far the last layer lies below the best one, by step: trained, untrained, and in CKA to the BERT."""
    figure, axes = open_panel("Last layer against the best one")
    whole_axis(axes, "pretraining steps")
    for place, model in enumerate(name for names in RUNS.values() for name in names):
        own = [row for row in rows if row["model"] == model]
        for key, style, scale in (("trained", "-", 1), ("untrained", ":", 1), ("cka", "--", 100)):
            values = [scale * float(row[key]) for row in own]
            label = f"{model}, {'CKA × 100' if key == 'cka' else key}"
            axes.plot([row["step"] for row in own], values, style, marker="o", color=f"C{place}", label=label)
    axes.set_ylabel("Spearman × 100 (or CKA × 100), last − best")
    axes.set_ylim(bottom=1.7 * axes.get_ylim()[0])  # room for nine names below the curves
    write_panel(figure, axes, out)


def draw_losses(losses: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Losses on held-out text over time, by run."""
    figure, axes = open_panel("Losses on held-out text")
    whole_axis(axes, "pretraining steps")
    for name, column, label in (
        ("bert", "words", "BERT, masked words"),
        ("electra", "words", "generator, masked words"),
        ("electra", "replaced", "discriminator, replaced tokens × 10"),
        ("electra", "base_rate", "… naming the base rate × 10"),
    ):
        scale = 1 if column == "words" else 10
        steps = [row["step"] for row in losses[name]]
        axes.plot(steps, [scale * float(row[column]) for row in losses[name]], label=label)
    axes.set_ylabel("nats per token")
    write_panel(figure, axes, out)


PARSER = new_parser(__doc__)
PARSER.add_argument(
    "--models",
    type=Path,
    nargs="+",
    required=True,
    help="the folder that pretrain.py wrote to, and others where it went on",
)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--out", type=Path, default=HERE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the snapshots that have not been measured, then write tables and figures."""
    options = PARSER.parse_args(arguments)
    models: list[Path] = options.models
    finished = models[-1]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for (model, step), folder in moments(models).items():
        kept = finished / "evidence" / f"{model}-{step}.json"
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            write_json(kept, measure(folder, step, finished / "bert", options.data, kept.parent / "trials"))
        figures = found[model, step] = json.loads(kept.read_text())
        for key in ("untrained", "trained"):
            print(f"{model} {step} {key}: {' '.join(f'{score:.1f}' for score in figures[key])}", flush=True)
    write_rows(
        options.out / "snapshots.csv",
        [row for (model, step), figures in sorted(found.items()) for row in rows_of(model, step, figures)],
    )
    fallen = falls(found)
    write_rows(options.out / "falls.csv", fallen)
    draw_falls(fallen, options.out / "falls.png")
    losses = {run: loss_rows(models, run) for run in RUNS}
    draw_losses(losses, options.out / "losses.png")
    for run, rows in losses.items():
        write_rows(options.out / f"{run}-losses.csv", rows)
        write_json(options.out / f"{run}.json", {"runs": [written for _, _, written in runs_of(models, run)]})


if __name__ == "__main__":
    main()
