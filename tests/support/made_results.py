"""Made results of every command, for tables, figures and pages; their numbers are round and easily recognised."""

import shutil
from pathlib import Path
from typing import Any, Literal

from truncate_kit.analysis.result import DropPrediction
from truncate_kit.bench.result import BenchedModel, BenchReport, Contestant, Key, Role, Scenario, Timing
from truncate_kit.core.hardware import EXPORT_RECORD
from truncate_kit.core.results import Result
from truncate_kit.core.workspace import ORIGIN_FILE, RESULT_FILES, Origin
from truncate_kit.data.pairs import Overlap
from truncate_kit.export.record import ExportReport, record_with
from truncate_kit.methods.bert_lc.settings import CombinationReport, CombineSettings, SplitReport
from truncate_kit.methods.contrast.settings import ContrastiveResult, ContrastiveSettings
from truncate_kit.methods.distill.settings import (
    Agreement,
    Budget,
    DistillResult,
    DistillSettings,
    LeanModel,
    SubsetSearch,
)
from truncate_kit.methods.frozen.settings import FrozenReport, FrozenSettings, FrozenTrial, Reconstruction
from truncate_kit.methods.tmft.settings import Certainty, LayerScores, SweepResult, SweepSettings
from truncate_kit.training.cutting import CutResult
from truncate_kit.training.settings import TrainingSettings, Trial

MACHINE: dict[str, Any] = {
    "processor": "Test", "cores": 2, "threads": 2, "device": "cpu", "bf16_instructions": None, "others_busy": None,
    "versions": {"python": "3", "torch": "2", "transformers": "5"},
}  # fmt: skip
SCORED: dict[str, Any] = {"scored_on": "set/test", "fingerprint": "01234567", "num_scored": 500, "bundled": False}

# The last layers of the two models of `a_sweep`.
MODELS: dict[Role, int] = {"lean": 5, "full": 8}


def timing(
    key: Key, scenario: Scenario, seconds: tuple[float, ...], shape: tuple[int, int] | None = None, **sizes: Any
) -> Timing:
    """One contestant in one scenario; shape: batch size and length."""
    batch_size, length = shape or (None, None)
    return Timing(
        role=key[0], backend=key[1], scenario=scenario, batch_size=batch_size, length=length, seconds=seconds, **sizes
    )


def a_bench() -> BenchReport:
    """Of the models of `a_sweep`, in three runtimes; one could not be measured."""
    places: dict[Key, tuple[float, float]] = {
        ("lean", "torch-fp32"): (0.1, 80.0),
        ("full", "torch-fp32"): (0.3, 82.0),
        ("lean", "onnx-fp32"): (0.05, 80.1),
    }
    absent = Contestant(role="lean", backend="torch-bf16", absent="this processor has no bf16 instructions")
    return BenchReport(
        **MACHINE, **SCORED, num_texts=50, seconds=1.0,
        models=tuple(
            BenchedModel(role=role, name=role, layer=layer, width=4, parameters=1000 * layer,
                         weights_bytes=4000 * layer)
            for role, layer in MODELS.items()
        ),
        contestants=(
            *(Contestant(role=key[0], backend=key[1], absent=None, score=row[1]) for key, row in places.items()),
            absent,
        ),
        timings=tuple(timing(key, "real set", (row[0],), sentences=50, tokens=300) for key, row in places.items()),
    )  # fmt: skip


def _row(layer: int, dev: float, test: float, spread: float) -> LayerScores:
    return LayerScores(
        layer=layer, parameters=1000 * layer, seeds=(0, 1), dev=dev, dev_std=spread, test=test, test_std=spread,
        test_pearson=test, test_pearson_std=spread,
    )  # fmt: skip


def _trial(layer: int, dev: float) -> Trial:
    return Trial(
        layer=layer, seed=0, epochs=1, steps=4, dev_scores=(dev,), best_epoch=1, dev=dev, dev_pearson=dev, test=None,
        test_pearson=None, seconds=1.0,
    )  # fmt: skip


def a_sweep() -> SweepResult:
    """Of eight layers, all trained, with one ranking; the fifth was chosen."""
    dev, test = [50.7, 69.6, 68.0, 67.6, 68.3, 67.3, 65.0, 64.0, 61.5], [40, 54, 55.7, 56.7, 57.6, 56.4, 54.7, 55, 53.8]
    rows = tuple(_row(layer, dev[layer], test[layer], 0.6) for layer in range(9))
    return SweepResult(
        model="mini <b>", data="stsb", data_fingerprint="", settings=SweepSettings(),
        training=TrainingSettings(epochs=2), learning_rate=1e-4, layers=rows,
        search=tuple(_trial(layer, dev[layer] - 4) for layer in range(9)), trials=(),
        chosen=5, chosen_seed=0, full=rows[-1], choice="Layer 5.", metric="Spearman × 100", search_cost=1,
        exhaustive_cost=2, seconds=1.0,
        prediction=DropPrediction(
            from_layer=6, confidence=0.8, sentence="It falls.", signs={}
        ),
        rankings={"probe": tuple((layer, 40.0 + layer) for layer in range(9))},
        certainty=Certainty(
            best=5, alike=(4, 5), compared=(4, 5, 6), lead=1.2, seeds=2, number=1500,
        ),
    )  # fmt: skip


# Blocks, precision, score and texts a second of graphs.
GRAPHS: tuple[tuple[tuple[int, ...], Literal["fp32", "int8"], float, float], ...] = (
    ((1, 2, 3, 4), "fp32", 100.0, 100.0),
    ((1, 3), "fp32", 97.0, 190.0),
    ((1, 3), "int8", 96.5, 400.0),
)


def a_distillation() -> DistillResult:
    """Of a model of four blocks; two of them learned."""
    subsets = ((1,), (1, 3), (1, 2, 4), (1, 2, 3, 4))
    scores = tuple((blocks, 70.0 + 10 * len(blocks)) for blocks in subsets)
    first = tuple((tuple(range(1, n + 1)), 60.0 + 10 * n) for n in (1, 2, 3, 4))
    agreement = Agreement(
        correlation=97.0, low=96.5, high=97.5, overlap=80.0, overlap_low=78.0, overlap_high=82.0, num_texts=250
    )
    learned = {"score": 97.0, "scores": (96.0, 97.0), "agreement": agreement, "steps": 9}
    return DistillResult(
        model="mini", depth=4, before="", metric="agreement with the full model", full_score=100.0,
        budget=Budget(blocks="2"), settings=DistillSettings(), learning_rate=5e-4,
        texts={"num_texts": 5000, "num_queries": 0, "repeated": 3, "excluded": 0, "tokens": 60000, "middle": 12,
               "long": 17, "cut": 0, "compared": 0},
        search=SubsetSearch(leading=scores, baselines={"first": first}, tried=15, exact=True, seconds=1.0),
        candidates=tuple(
            LeanModel(blocks=blocks, untrained=score, texts_per_second=400.0 / len(blocks), pace=4.0 / len(blocks),
                      megabytes=0.004 * len(blocks), **(learned if blocks == (1, 3) else {"score": score}))
            for blocks, score in scores
        ),
        chosen=(1, 3), holds=True, scores=None, tryouts=(), needed=None,
        frontier=tuple(
            LeanModel(blocks=blocks, precision=precision, dims=16, words=100, score=score, megabytes=1.0,
                      texts_per_second=speed, pace=speed)
            for blocks, precision, score, speed in GRAPHS
        ),
    )  # fmt: skip


def an_export() -> ExportReport:
    """Of a graph that nobody has; its digests are empty."""
    return ExportReport(
        model="mini", encoder="", precision="fp32", target="cpu", family="bert", layers=2, width=16, pooling="mean",
        normalized=False, max_length=64, file="onnx/model.onnx", file_bytes=5_000_000, opset=20,
        versions={"torch": "2", "onnxruntime": "1.31"}, fused_nodes={"Attention": 2}, mask="tokens",
        graph_sha256={}, model_sha256={},
        checks={"padding": 1e-7, "length 2": 1e-7},
        spearman=(57.6, 57.6), pearson=(57.0, 57.0), scored_on="stsb/test",
    )  # fmt: skip


def a_quality(low: float, high: float) -> dict[str, float]:
    """Lean less full with this interval around its middle; full has 80."""
    middle = (low + high) / 2
    return {
        "lean": 80 + middle, "full": 80.0, "difference": middle, "low": low, "high": high, "level": 0.95,
        "resamples": 2000, "num_pairs": 500,
    }  # fmt: skip


RESULTS = ("cut", "distilled", "sweep", "contrast", "heads", "combined")


def an_origin(made: Result) -> Origin:
    """What the folder of the lean model says that this result is of."""
    own: dict[str, Any] = {"model": made.to_dict()["model"]}
    match made:
        case CutResult():
            own |= {"method": "cut", "layer": made.layer, "depth": made.depth, "blocks": made.blocks}
            own |= {"parameters": made.parameters}
        case DistillResult():
            own |= {"method": "distill", "layer": len(made.chosen), "depth": made.depth, "blocks": made.chosen}
            own |= {"long": made.texts["long"], "parameters": 1000 * len(made.chosen)}
        case SweepResult():
            own |= {"method": "finetune", "layer": made.chosen, "depth": made.full.layer, "blocks": made.blocks}
            own |= {"data": made.data, "fingerprint": made.data_fingerprint, "parameters": made.lean.parameters}
        case ContrastiveResult():
            own |= {"method": "contrast", "layer": made.layer, "depth": made.depth, "parameters": made.parameters}
        case _:
            raise AssertionError(made)
    return Origin(**own, source_digest="", trained=True, settings={}, versions={})


def write_run(folder: Path, lean: Path, **results: Result | None) -> Path:
    """A workspace as `finetune`, `export` and `bench` leave it, with `lean` as its model; returns it.

    results: What stands in `sweep`, `bench`, `profile`, `distilled`, `cut` and `graph` instead; None leaves it out.
    """
    shutil.copytree(lean, folder / "lean")
    found = {"sweep": a_sweep(), "bench": a_bench(), "graph": an_export(), **results}
    places = dict(zip(RESULTS, RESULT_FILES.values(), strict=True))
    places |= {"bench": "bench.json", "profile": "analysis/profile.json"}
    made = next((found[name] for name in RESULTS[:4] if found.get(name) is not None), None)
    if made is not None:
        an_origin(made).write(folder / "lean" / ORIGIN_FILE)
    for name, place in places.items():
        if (result := found.get(name)) is not None:
            (folder / place).parent.mkdir(exist_ok=True)
            result.write(folder / place)
    if isinstance(graph := found["graph"], ExportReport):
        (folder / "lean/onnx").mkdir()
        (folder / "lean" / graph.file).write_bytes(b"no graph")
        (folder / "lean" / EXPORT_RECORD).write_text(record_with(folder / "lean", graph))
    return folder


def a_combination(splits: int, *, missing: bool = False) -> CombinationReport:
    """A search over four layers with this number of equal splits; missing: scores that are not defined."""
    rows = tuple(((0, layer), 70.0 + layer, 68.0 - layer) for layer in range(4))
    split = SplitReport(
        num_dev=350, best=rows[3], by_size=rows, without=(None, *rows[1:]) if missing else rows,
        baselines={"last layer": (60.0, None if missing else 59.0)},
    )  # fmt: skip
    return CombinationReport(
        model="mini <b>", data="stsb", settings=CombineSettings(), pooling="mean", depth=3, method="exact", up_to=4,
        num_subsets=15, num_pairs=1379, splits=(split,) * splits, chosen=(0, 3), chosen_dev=73.0,
        unseen=None, num_unseen=0, seconds=1.0,
    )  # fmt: skip


def some_heads(seeds: tuple[int, ...] = (0, 1), layers: tuple[int, ...] = (1, 2), *, gap: bool = False) -> FrozenReport:
    """Heads of two steps; gap: blocks without a score."""
    trials = tuple(
        FrozenTrial(
            step=step, layer=layer, seed=seed, dev_scores=(60.0,), best_epoch=1, dev=60.0 + layer + seed,
            dev_pearson=61.0, test=50.0 + layer + 2 * seed, test_pearson=52.0, parameters=1234, seconds=1.0,
            blocks=(None if gap else 40.0, 45.0)[:layer],
        )
        for step in ("cosine", "siamese") for layer in layers for seed in seeds
    )  # fmt: skip
    return FrozenReport(
        model="gpt <b>", data="stsb", data_fingerprint="", pooling="last", depth=2, width=16,
        settings=FrozenSettings(steps=("cosine", "siamese"), seeds=seeds),
        states=(None if gap else 20.0, 10.0), train_states=(12.0, 8.0),
        trials=trials, test_sentences_in_nli=None, chosen_step="siamese", chosen_layer=2, chosen_seed=0,
        reconstruction=Reconstruction(
            code_widths=(5, 10), losses=(0.4, 0.3), own_losses=(0.2, 0.1), num_sentences=100, left_out=3
        ),
        worst=(("a " * 60, "b", 0.25, 0.75, -0.5),),
        overlap=Overlap(train_test=(0, 0), test_sentences=2, test_sentences_in_train=1), seconds=1.0, notes=("Said.",),
    )  # fmt: skip


def a_contrast() -> ContrastiveResult:
    """Of two seeds, the second of which was saved."""
    trials = tuple(
        Trial(
            layer=2, seed=seed, dev_scores=(60.0, 61.0 + seed, 60.5), best_epoch=2, dev=61.0 + seed, dev_pearson=60.0,
            test=58.0 + seed, test_pearson=57.0, seconds=1.0, epochs=1, steps=30,
        )
        for seed in (0, 1)
    )  # fmt: skip
    return ContrastiveResult(
        model="<b>mini", rows="nli.csv", num_rows=900, rows_fingerprint="", data="stsb",
        data_fingerprint="", settings=ContrastiveSettings(),
        epochs=1, batch_size=32, learning_rate=5e-5, layer=2, depth=3, parameters=99, trials=trials, chosen_seed=1,
        dev=61.5, dev_std=0.7, test=58.5, test_std=0.7, test_texts=20, seen=3, processes=1, seconds=2.0,
    )  # fmt: skip
