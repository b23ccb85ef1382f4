"""Parts of results: each kind on the page of its run, and as a cell of a notebook; every string escaped."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.made_results import (
    a_bench,
    a_combination,
    a_contrast,
    a_distillation,
    a_sweep,
    an_export,
    some_heads,
    write_run,
)
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit import AnalysisSettings, SweepSettings, profile
from truncate_kit.evaluation.graded import Evaluation
from truncate_kit.methods.distill.result import SubsetScore
from truncate_kit.methods.distill.settings import Budget
from truncate_kit.models import load_encoder
from truncate_kit.report.parts import PARTS, sizes_part
from truncate_kit.report.writing import write_page

pytestmark = pytest.mark.usefixtures("drawn")
DRAWINGS = {  # of each kind of result
    "LayerProfile": 3,
    "SweepResult": 1,
    "DistillResult": 2,
    "ContrastiveResult": 1,
    "FrozenReport": 3,
    "CombinationReport": 2,
    "BenchReport": 1,
    "ExportReport": 0,
}


class Elements(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def made(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    looked = profile(encoder, TEXTS, pairs=pairs_of(TEXTS), settings=AnalysisSettings())
    results = looked, a_sweep(), a_distillation(), a_contrast(), some_heads(), a_combination(2), a_bench(), an_export()
    return {type(result).__name__: result for result in results}


def test_every_kind_of_result_is_shown_in_a_notebook(made):
    assert {kind.__name__ for kind in PARTS} == set(made) == set(DRAWINGS)
    ids = []
    for name, result in made.items():
        found = Elements(result._repr_html_())
        assert found.tags.count("svg") == DRAWINGS[name], name
        assert "table" in found.tags
        assert "script" not in found.tags
        assert "img" not in found.tags
        ids += found.ids
    assert len(ids) == len(set(ids))  # all cells are one page


def test_what_simpler_rules_keep_is_shown_beside_the_sizes():
    made = a_distillation()
    rules = {"cka": 71.25, "block_influence": 72.25, "angular": 73.25}
    baselines = {name: (SubsetScore(blocks=(1, 2), score=score),) for name, score in rules.items()}
    found = Elements(
        replace(made, search=replace(made.search, baselines=baselines | made.search.baselines))._repr_html_()
    )
    assert "what simpler rules keep" in found.text
    assert all(text in found.text for text in ("cka", "block influence", "angular", "71.25", "72.25", "73.25"))


def test_every_graph_of_a_distillation_is_shown_and_the_beaten_ones_are_marked():
    made = a_distillation()
    first, second, third = made.frontier.points
    beaten = replace(made, frontier=replace(made.frontier, points=(first, replace(second, dominated=True), third)))
    found = Elements(beaten._repr_html_()).text
    assert "All 3 graphs" in found
    assert f"({second.score:.2f})" in found
    assert "in brackets: another one beats it" in found
    assert "Hollow: 1 of 3" in found
    assert "hollow: another one beats it" in found
    assert "Hollow" not in Elements(made._repr_html_()).text
    taken = replace(made, graph=third, budget=Budget(speedup=2))
    assert taken.graph_sentence.startswith("Of the graphs that are 2 times as fast")
    assert taken.graph_sentence in sizes_part(taken).sentences
    assert sizes_part(made).sentences == (f"Texts: {made.texts.sentence}",)


def test_text_of_data_is_no_html(made):
    found = Elements(made["ContrastiveResult"]._repr_html_() + made["FrozenReport"]._repr_html_())
    assert "gpt <b>" in found.text
    assert found.tags.count("b") == 2  # the titles


def test_any_other_result_is_a_table_of_its_fields():
    cosines = tuple(place / 10 for place in range(9))
    found = Elements(Evaluation(spearman=81.25, pearson=80.0, num_pairs=9, cosines=cosines)._repr_html_())
    assert "81.25" in found.text
    assert "9 values" in found.text
    assert "best-dev" in Elements(SweepSettings()._repr_html_()).text


@pytest.mark.parametrize(
    ("key", "kind", "title"),
    [
        ("contrast", "ContrastiveResult", "Contrastive training"),
        ("heads", "FrozenReport", "Heads over frozen states"),
        ("combined", "CombinationReport", "Several layers together"),
    ],
)
def test_other_trainings_have_their_part_on_the_page(made, tiny_folder, tmp_path, key, kind, title):
    write_run(tmp_path, tiny_folder("bert"), **{"sweep": None, "bench": None, "graph": None, key: made[kind]})
    found = Elements(Path(write_page(tmp_path).page).read_text(encoding="utf-8"))
    assert title in found.text
    assert "Learned from Training:" not in found.text
    assert found.tags.count("svg") == DRAWINGS[kind]


@pytest.mark.parametrize(("over", "said"), [("mean", "The mean of layers"), ("max", "The maximum of layers")])
def test_a_combination_is_called_what_it_is(made, tiny_folder, tmp_path, over, said):
    report = made["CombinationReport"]
    report = replace(report, settings=replace(report.settings, over=over))
    write_run(tmp_path, tiny_folder("bert"), sweep=None, bench=None, graph=None, combined=report)
    assert write_page(tmp_path).recommendations[0].startswith(said)
