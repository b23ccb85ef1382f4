"""A study on tiny models: the file, the rows, tables and figures, what continues, what is said of bad files."""

import csv
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.commands import run_both
from tests.support.files import pairs_file, write_study
from tests.support.pairs import make_pairs
from tests.support.training import swept
from tests.support.trials import rows_of
from truncate_kit.core.errors import DataError, ModelError, UsageError
from truncate_kit.data.pairs import PairSplits, complete_splits, load_pairs
from truncate_kit.methods.priors import WordPrior
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.result import Curve, StudyResult, StudyRow, pareto_front
from truncate_kit.methods.study.running import load_model, run_study
from truncate_kit.methods.tmft.settings import LayerScores
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.chart import write_figures
from truncate_kit.report.study import write_tables
from truncate_kit.report.view import points, view_of
from truncate_kit.training.settings import default_learning_rate, word_training


@pytest.fixture(scope="module")
def file(tiny_folder, tmp_path_factory) -> Path:
    """Two models, one of them again without its weights; two tasks."""
    home = tmp_path_factory.mktemp("study")
    pairs_file(home / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    pairs_file(home / "labels.csv", "label", (0, 1))
    (home / "published.csv").write_text(
        "name,setting,dataset,layer,split,metric,mean\n"
        "their BERT,plain,their set,1,test,spearman,0.5\n"
        "their BERT,plain,their set,1,dev,spearman,0.7\n"
        "their BERT,plain,their set,1,dev,pearson,0.6\n"
        "their BERT,dapt,their set,2,test,spearman,0.8\n"
    )
    bert = tiny_folder("bert")
    return write_study(
        home,
        seeds=2,
        published="published.csv",
        cka="small | bert",
        training={"epochs": 1, "learning_rate": 1e-3},
        models=[
            {"model": bert, "name": "small | bert", "published": "their BERT"},
            {"model": bert, "name": "drawn anew", "weights": "random", "pooling": "cls"},
        ],
        tasks=[
            {"data": "graded.csv", "name": "graded", "published": "their set"},
            {"data": "labels.csv", "name": "labels", "objective": "paraphrase", "epochs": 2},
        ],
    )


@pytest.fixture(scope="module")
def done(file, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run_study(read_study(file), out), out


def test_every_model_meets_every_task_at_every_layer(done):
    result, _ = done
    assert len(result.rows) == 2 * 4 + 2 * 3  # no layer 0 for CLS pooling: every text has the same state there
    assert {len(row.scores.seeds) for row in result.rows} == {2}
    assert {row.metric for row in result.rows} == {"Spearman × 100", "F1 × 100"}
    (row,) = (row for row in result.rows if row.published_test is not None)
    assert row in (one for one in result.rows if one.published_dev is not None)
    assert (row.model, row.task, row.scores.layer) == ("small | bert", "graded", 1)
    published = (row.published_test, row.published_dev, row.published_dev_pearson, row.published_test_pearson)
    assert published == (50.0, 70.0, 60.0, None)


def test_rows_equal_those_of_finetune(file, done, tmp_path):
    study = read_study(file)
    data, training = complete_splits(load_pairs(study.tasks[0].data)), study.tasks[0].training
    alone = swept(load_encoder(study.models[0].model), tmp_path, data, training, layers="all", seeds=(0, 1))
    assert [row.scores for row in rows_of(done[0], "small | bert", "graded")] == list(alone.layers)


def test_random_weights_keep_tokenizer_and_shape_and_are_the_same_each_time(file):
    trained, drawn = (load_model(model) for model in read_study(file).models)
    again = load_model(read_study(file).models[1])
    assert drawn.token_ids(["the cat"]) == trained.token_ids(["the cat"])
    for (name, value), other in zip(drawn.state_dict().items(), trained.state_dict().values(), strict=True):
        assert torch.equal(value, again.state_dict()[name])
        assert value.shape == other.shape
    assert not torch.equal(drawn.vectors(["the cat"]), trained.vectors(["the cat"]))


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_tables_and_figures_are_written_and_the_result_comes_back(file, done, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(done[1], tmp_path / "exported/study")  # the command goes on from there
    out, err = run_both(capfd, "study", file)
    assert "drops by" in out
    assert err.count("Layer ") == 2 * 14  # each stored trial once
    rows, best, similarities = (table(folder / f"{name}.csv") for name in ("scores", "best", "cka"))
    result = StudyResult.read(folder / "study.json")
    assert [float(row["test"]) for row in rows] == pytest.approx([row.scores.test for row in result.rows], abs=0.006)
    assert rows[1]["published_test"] == "50.00"
    page = (folder / "tables.md").read_text()
    assert "small \\| bert" in page
    for name in (f"{kind}-{task}.png" for kind in ("curves", "layers", "pareto", "cka") for task in result.tasks()):
        assert name in page
        assert (folder / name).is_file()
    rows_of_best = [curve.best_dev for task in result.tasks() for curve in result.curves(task)]
    assert [(row["model"], row["task"]) for row in best] == [(row.model, row.task) for row in rows_of_best]
    scores = rows_of_best[0].scores
    millions = f"{rows_of_best[0].paper_parameters / 1e6:.2f}"
    cells = [points(scores.dev, scores.dev_std), points(scores.dev_pearson, scores.dev_pearson_std)]
    cells += [points(scores.test, scores.test_std), points(scores.test_pearson, scores.test_pearson_std)]
    assert f"| small \\| bert | {scores.layer} | {millions} | {' | '.join(cells)} |" in page
    for key, deviation in (("test_std", scores.test_std), ("dev_pearson_std", scores.dev_pearson_std)):
        assert float(best[0][f"best_dev_{key}"]) == pytest.approx(deviation, abs=0.006)
    front = [(row["model"], row["task"], int(row["layer"])) for row in rows if row["on_front"] == "True"]
    assert sorted(front) == sorted(
        (row.model, task, row.scores.layer) for task in result.tasks() for row in pareto_front(result.of(task))
    )
    assert [float(row["last_trained"] or "nan") for row in similarities] == pytest.approx(
        [float("nan") if row.last_trained is None else row.last_trained for row in result.cka], abs=6e-5, nan_ok=True
    )


def test_trials_are_found_by_the_rate_they_were_trained_with(tiny_folder, tmp_path):
    """A later version's default may be another one: its trials are not these, whatever the file leaves out."""
    pairs_file(tmp_path / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    model = tiny_folder("bert")

    def stores(**rate):
        training, models, tasks = {"epochs": 1} | rate, [{"model": model}], [{"data": "graded.csv"}]
        file = write_study(tmp_path, seeds=1, layers=[1], training=training, models=models, tasks=tasks)
        run_study(read_study(file), tmp_path / "out")
        return sorted(path.name for path in (tmp_path / "out/trials").iterdir() if path.is_dir())

    left_out = stores()
    assert stores(learning_rate=default_learning_rate(load_encoder(model).width)) == left_out
    assert len(stores(learning_rate=1e-4)) == 2
    words = PairSplits(name="words", train=make_pairs(12), dev=make_pairs(6, seed=1), test=make_pairs(6, seed=2))
    rates = [WordPrior(load_encoder(model), words, word_training(learning_rate=rate)) for rate in (None, 5e-4, 1e-4)]
    assert [prior.fingerprint() == rates[0].fingerprint() for prior in rates] == [True, True, False]


@pytest.mark.parametrize("missing", ["nothing", "trial of the first part", "trial of the last part"])
def test_a_resumed_study_never_has_fewer_rows_in_its_tables(file, done, tmp_path, missing):
    shutil.copytree(done[1], tmp_path, dirs_exist_ok=True)
    done[0].write(tmp_path / "study.json")
    records, tables = tmp_path / "trials/trials.jsonl", list[int]()
    whole = records.read_bytes()
    lines = whole.decode().splitlines(keepends=True)
    stores = [json.loads(line)["store"] for line in lines]
    gone = {"trial of the first part": len(stores) - 1 - stores[::-1].index(stores[0]), "trial of the last part": -1}
    if missing in gone:
        del lines[gone[missing]]
    records.write_text("".join(lines))
    again = run_study(read_study(file), tmp_path, finished=lambda result: tables.append(len(result.rows)))
    assert tables == [len(done[0].rows)]
    if missing not in gone:
        assert (again.rows, again.cka, records.read_bytes()) == (done[0].rows, done[0].cka, whole)


def test_a_study_that_names_less_has_tables_of_the_rest(file, done, tmp_path):
    shutil.copytree(done[1], tmp_path, dirs_exist_ok=True)
    done[0].write(tmp_path / "study.json")
    tables = list[StudyResult]()
    less = replace(read_study(file), layers="3")
    last = run_study(less, tmp_path, finished=tables.append)
    assert tables == [last]
    assert {row.scores.layer for row in last.rows} == {3}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"models": [{"model": "none/such"}]}, "no folder 'none/such'"),
        ({"layers": "3,4"}, r"small \| bert: Layer 4 does not exist"),
        ({"models": [{"name": "last", "blocks": [4]}]}, "last: Block 4 does not exist"),
        ({"tasks": [{"data": "none.csv"}]}, "none.csv does not exist"),
        ({"tasks": [{"data": "graded.csv", "objective": "paraphrase"}]}, "does not hold exactly the labels 0 and 1"),
        ({"priors": [{"name": "a"}, {"texts": "none.txt"}]}, "none.txt does not exist"),
        ({"priors": [{"words": "none"}]}, "none holds no word similarity set"),
        ({"priors": [{"texts": "labels.csv", "layer": 9}]}, r"small \| bert: Layer 9 does not exist"),
        ({"read_earlier": True, "training": {"objective": "entailment"}}, "does not fit earlier layers"),
    ],
)
def test_what_is_wrong_in_the_last_line_is_said_before_the_first_training(file, tmp_path, more, error):
    study = tomllib.loads(file.read_text())
    for key, value in more.items():
        study[key] = [*study.get(key, ()), *value] if isinstance(value, list) else value
    study["models"][-1].setdefault("model", study["models"][0]["model"])
    for name in ("graded.csv", "labels.csv", "published.csv"):
        shutil.copy(file.with_name(name), tmp_path)
    with pytest.raises((UsageError, DataError, ModelError), match=error) as raised:
        run_study(read_study(write_study(tmp_path, **study)), tmp_path / "out")
    assert "--layer" not in raised.value.hint
    assert not (tmp_path / "out/trials").exists()


def scored(layer: int, parameters: int, test: float, std: float | None = None, dev: float = 50.0) -> StudyRow:
    scores = LayerScores(
        layer=layer, parameters=parameters, seeds=(0, 1), dev=dev, dev_std=None, test=test, test_std=std,
        test_pearson=None, test_pearson_std=None,
    )  # fmt: skip
    return StudyRow(model="m", task="t", metric="x", depth=3, scores=scores, paper_parameters=1)


def test_the_front_holds_what_nothing_smaller_beats():
    rows = [scored(0, 10, 60.0), scored(1, 20, 59.0), scored(2, 20, 61.0), scored(3, 30, 61.0)]
    assert [row.scores.layer for row in pareto_front(rows)] == [0, 2]


@pytest.mark.parametrize(
    ("last", "deviation", "seeds", "drops"),
    [
        (58.0, 0.1, (0, 1), True),
        (58.5, 0.1, (0, 1), False),
        (58.0, 1.5, (0, 1), False),
        (61.0, 0.1, (0, 1), False),
        (40.0, None, (0,), False),
    ],
)
def test_a_drop_is_two_points_and_two_standard_errors_of_several_seeds(last, deviation, seeds, drops):
    rows = (scored(1, 1, 60.0, deviation), scored(2, 2, 59.0, deviation), scored(3, 3, last, deviation))
    rows = tuple(replace(row, scores=replace(row.scores, seeds=seeds)) for row in rows)
    curve = Curve(rows)
    assert curve.drop == pytest.approx(60.0 - last)
    assert curve.drops == drops


def test_a_study_without_the_last_layer_has_its_tables(tmp_path):
    result = StudyResult(rows=(scored(1, 10, 60.0), scored(2, 20, 61.0)), seconds=0.0)
    (curve,) = result.curves("t")
    assert (curve.last, curve.drop, curve.drops) == (None, None, False)
    best = curve.best_dev.scores
    write_tables(result, tmp_path)
    page = (tmp_path / "tables.md").read_text()
    scores = points(best.dev, best.dev_std), points(best.test, best.test_std)
    assert f"| m | {best.layer} | {best.parameters} | {' | '.join(scores)} |" in page
    (row,) = table(tmp_path / "best.csv")
    assert (row["best_dev_layer"], row["last_layer"], row["last_test"], row["drop"]) == (f"{best.layer}", "", "", "")
    write_figures(view_of(result), tmp_path)
