"""Published figures: every form that they come in, and which of them stands beside a row."""

import csv
import itertools

import pytest

from tests.support.files import write_study
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.result import read_published
from truncate_kit.methods.study.running import run_study


def test_all_figures_of_the_paper_are_read_and_its_tables_win(shared_data):
    found = read_published(str(shared_data / "reference"))
    for name in ("tmft_table1.csv", "tmft_table2.csv"):
        with (shared_data / "reference" / name).open() as handle:
            for row in csv.DictReader(handle):
                label = row.get("setting", "TMFT STSB")
                setting = {"TMFT STSB": "plain", "TMFT WS + TMFT STSB": "word-similarity"}.get(label, "dapt")
                for split, metric in itertools.product(("dev", "test"), ("spearman", "pearson")):
                    place = (row["model"], "stsb/en", setting, int(row["layer"]), split, metric, "mean")
                    assert found[place] == float(row[f"{'val' if split == 'dev' else 'test'}_{metric}"])
    assert found["ELECTRA-D-large", "stsb/en", "plain", 24, "test", "spearman", "mean"] == 25.84  # 35.53 at first
    assert found["ELECTRA-D-base", "stsb/en", "plain", 9, "test", "spearman", "mean"] == pytest.approx(78.14)
    assert found["KoELECTRA discriminator", "korsts", "plain", 9, "test", "spearman", "mean"] == 72.27
    assert found["DeBERTaV3-base", "mrpc", "plain", 10, "test", "f1", "mean"] == 85.53
    assert found["ELECTRA-G-base", "sick", "plain", 11, "test", "f1", "mean"] == 71.87
    assert found["BETO", "stsb/es", "plain", 3, "test", "spearman", "mean"] > 50


def test_a_figure_stands_beside_the_same_metric_and_pooling_only(tiny_folder, tmp_path):
    rows = [f"the {a} sat,a {b} ran,{(a + b) % 2}" for a in range(8) for b in range(8)]
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/tmft_best_layers.csv").write_text(
        "task,language,model,layer,metric,value\nMRPC,en,theirs,1,f1,82.5\nMRPC,en,theirs,,f1,99\nRTE,en,theirs,1,f1,70\n"
    )
    (tmp_path / "figures/tmft_per_layer.csv").write_text(
        "name,pooling,setting,dataset,layer,split,metric,mean\n"
        "theirs,cls,plain,mrpc,1,test,spearman,0.3\ntheirs,cls,plain,mrpc,1,test,f1,0.6\n"
    )
    bert = {"model": tiny_folder("bert"), "published": "theirs"}
    models = [{"name": "mean"}, {"name": "cls", "pooling": "cls"}, {"name": "max", "pooling": "max"}]
    models = [bert | model for model in (*models, {"name": "drawn", "weights": "random"})]
    tasks = [{"data": "pairs.csv", "published": "mrpc", "objective": "paraphrase", "epochs": 1}]
    file = write_study(tmp_path, seeds=1, layers="1", published="figures", models=models, tasks=tasks)
    result = run_study(read_study(file), tmp_path / "out")
    found = {row.model: row.published_test for row in result.rows}
    assert found == {"mean": 82.5, "cls": 60.0, "max": None, "drawn": None}
    assert {row.published_test_pearson for row in result.rows} == {None}


def test_a_file_or_folder_without_finite_figures_is_said(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "nan.csv").write_text(
        "name,setting,dataset,layer,split,metric,mean\nbert,plain,sts,3,test,spearman,nan\n"
    )
    for path in (tmp_path, tmp_path / "other.csv", tmp_path / "none.csv", tmp_path / "nan.csv"):
        with pytest.raises(DataError, match="no published figures"):
            read_published(str(path))


FIGURES = (
    "name,setting,dataset,layer,split,metric,mean\n"
    "BERT-base,plain,stsb/en,1,test,spearman,0.5\nBERT-large,plain,stsb/en,1,test,spearman,0.6\n"
)


def study_of(folder, model=None, task=None, top=True):
    (folder / "figures.csv").write_text(FIGURES)
    models, tasks = [{"model": "mini-bert"} | (model or {})], [{"data": "bundled"} | (task or {})]
    published = {"published": "figures.csv"} if top else {}
    return read_study(write_study(folder, **published, models=models, tasks=tasks))


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"model": {"published": "BERT-basse"}}, "no published figures of 'BERT-basse'", "Models: BERT-base"),
        ({"task": {"published": "xyz"}}, "no published figures of 'xyz'", "Tasks: stsb/en"),
        ({}, "of a model and a task of this study", "Models: BERT-base, BERT-large. Tasks: stsb/en"),
        ({"model": {"name": "BERT-base"}}, "of a model and a task of this study", "Tasks: stsb/en"),
        ({"model": {"published": "BERT-base"}, "top": False}, "no published figures of 'BERT-base'", "published ="),
    ],
)
def test_names_without_figures_are_said_before_the_first_training(tmp_path, changes, message, hint):
    with pytest.raises(UsageError, match=message) as problem:
        run_study(study_of(tmp_path, **changes), tmp_path / "out")
    assert hint in problem.value.hint
    assert not (tmp_path / "out/trials").exists()
