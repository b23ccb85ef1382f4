"""Kept trials and reports can be read, and the tables of poolings are theirs."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.combine.run import REPORTS as COMBINATIONS
from benchmarks.combine.run import CombinationReport
from benchmarks.drop.foresight import HERE as DROP
from benchmarks.drop.foresight import DropPrediction
from benchmarks.frozen.path import REPORTS as FREEZE_PATH
from benchmarks.frozen.run import REPORTS as FROZEN
from benchmarks.frozen.run import FrozenReport
from benchmarks.layer_attention.run import PARTS, Cell
from benchmarks.layer_attention.run import REPORTS as POOLINGS
from benchmarks.records import Records
from tests.support.trials import read_trials
from truncate_kit.models.store import RunStore
from truncate_kit.training.settings import TABLE_2, Trial

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TRIALS = sorted(file for file in BENCHMARKS.rglob("trials.jsonl") if "work" not in file.relative_to(BENCHMARKS).parts)


@pytest.mark.parametrize("file", TRIALS, ids=lambda file: file.parts[-3])
def test_kept_trials_are_what_a_store_reads(file, tmp_path, caplog):
    shutil.copytree(file.parent, tmp_path / "trials")
    stores = read_trials(file)
    assert sum(map(len, stores.values())) > 100
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {row["store"] for row in rows if row["kind"] == "settings" and row["training"]["epochs"]} == set(stores)
    for key, trials in stores.items():
        store = RunStore(tmp_path / "trials", key)
        with store.open():
            assert [store.read(trial.name, Trial) for trial in trials] == list(trials)
            assert not caplog.records


@pytest.mark.parametrize(
    ("file", "kind", "count"),
    [
        (COMBINATIONS, CombinationReport, 13),
        (FROZEN.path, FrozenReport, 2),
        (POOLINGS, Cell, 140),
        (FREEZE_PATH, FrozenReport, 18),
        (DROP / "predictions.jsonl", DropPrediction, 41),
    ],
)
def test_reports_behind_the_tables_can_be_read(file, kind, count):
    values = Records(file).values()
    assert len(values) == count
    for value in values:
        restored = dict(leaves(json.loads(kind.from_dict(value).to_json())))
        assert {place: leaf for place, leaf in leaves(value) if restored.get(place) != leaf} == {}


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every figure and text with the keys and indices that lead to it, but for the settings of a run."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "settings":
                yield from leaves(part, (*place, key))
    else:
        yield place, value


def test_the_tables_of_poolings_are_those_of_their_runs():
    text = (POOLINGS.parent / "README.md").read_text(encoding="utf-8").replace("**", "")
    heads = "mini-bert, bf16", "all-MiniLM-L6-v2, float32", "## Rows beyond Table 2"
    starts = [text.index(head) for head in heads]
    sections = {"mini-bert": text[starts[0] : starts[1]], "all-MiniLM-L6-v2": text[starts[1] : starts[2]]}
    sections["parts"] = text[starts[2] :]
    cells = [Cell.from_dict(value) for value in Records(POOLINGS).values()]
    runs = [(row, model) for row in TABLE_2 for model in ("mini-bert", "mini-bert, twelve epochs", "all-MiniLM-L6-v2")]
    runs += [(row, "all-MiniLM-L6-v2, six epochs") for row in TABLE_2] + [(row, "mini-bert") for row in PARTS]
    for row, model in runs:
        section = sections["parts" if row in PARTS else model.partition(",")[0]]
        (line,) = [line for line in section.splitlines() if line.startswith(f"| {row} |")]
        kept = [cell.run for cell in cells if (cell.row, cell.run.model) == (row, model)]
        found = [run for run in kept if run.settings.objective == "hard-negatives"]
        assert len({run.settings.seeds for run in found}) == len(found) == 3
        for values in ([run.test for run in found], [run.dev for run in found]):
            assert f"| {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} |" in line


def test_the_page_of_the_paper_has_the_other_equations_as_they_were_run():
    page = (POOLINGS.parents[2] / "docs/papers/layer-attention.md").read_text(encoding="utf-8")
    for objective, start in (("in-batch", "| equation 6 |"), ("dropout", "| equation 7,"), ("diffcse", "| `diffcse`,")):
        (line,) = [line for line in page.splitlines() if line.startswith(start)]
        for row in ("cls", "layer-attention"):
            runs = [Cell.from_dict(value).run for value in Records(POOLINGS).values() if value["row"] == row]
            tests = [run.test for run in runs if run.settings.objective == objective]
            assert f"| {np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f} |" in line
