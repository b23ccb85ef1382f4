"""`truncate-kit analyze`: every option, what it prints and what it leaves."""

import json

import matplotlib.image
import pytest

from tests.support.commands import run_json
from tests.support.files import graded_file, kept_in
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.core.results import FORMAT
from truncate_kit.data.pairs import load_pairs
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.view import view_of


@pytest.fixture
def pairs_file(tmp_path):
    return graded_file(tmp_path / "pairs.csv", pairs_of(TEXTS))


@pytest.fixture
def analyzed(capfd):
    """A function from options of `analyze` to the profile that it prints."""
    return lambda *arguments: run_json(capfd, "analyze", *arguments)


def test_no_argument_analyses_the_bundled_miniature_on_the_bundled_pairs(run, tmp_path, drawn):
    out, err = run("analyze")
    assert "Data: bundled (train 2,500, dev 500, test 500 pairs)." in err
    written = LayerProfile.read(tmp_path / "exported/analysis/profile.json")
    assert f"{written.num_texts:,} distinct texts" in err
    assert view_of(written).sentences[-1] in out
    best = max(range(9), key=lambda layer: written.spearman[layer])
    ends = f"(Spearman {written.spearman[best]:.1f}, the last layer {written.spearman[8]:.1f})."
    assert " ".join(out.split()).count(f"Highest without further training: layer {best} {ends}") == 1
    assert f"{written.parameters[8]:,}" in out
    assert matplotlib.image.imread(tmp_path / "exported/analysis/curve.png").shape[1] == 1080
    assert (written.model, written.reference) == ("mini-electra-discriminator", "mini-bert")
    assert written.num_pairs == 500


def test_json_alone_is_on_stdout_and_equals_the_library(run, tmp_path, encoder, tiny_folder, pairs_file):
    options = ("--data", pairs_file, "--scale", "0,5", "--json", "--workspace", "other")
    out, err = run("analyze", tiny_folder("bert"), *options)
    assert err == ""
    assert json.loads(out) == {"format": FORMAT} | kept_in(tmp_path / "other/analysis/profile.json")
    assert (tmp_path / "other/analysis/curve.png").exists()
    assert not (tmp_path / "exported").exists()
    pairs = load_pairs(pairs_file, scale=(0, 5), divide=False).evaluation
    assert LayerProfile.from_dict(json.loads(out)) == profile(encoder, pairs=pairs)


def test_the_next_analysis_takes_up_model_and_data(run, analyzed, tiny_folder, pairs_file):
    assert analyzed(tiny_folder("bert"), "--data", pairs_file, "--scale", "0,10") == analyzed()
    assert "Scores run from 0 to 10 (as given)." in run("analyze")[1]


def test_a_shorter_analysis_of_the_same_texts_stands_beside_the_longer_one(
    run, analyzed, tmp_path, tiny_folder, pairs_file
):
    usual, beside = (tmp_path / f"exported/analysis/{name}.json" for name in ("profile", "profile-2"))
    bert = (tiny_folder("bert"), "--data", pairs_file)
    whole = analyzed(*bert)
    out, err = run("analyze", *bert, "--max-texts", 30)
    assert "profile.json is kept" in " ".join(err.split())
    assert "profile-2.json" in out
    assert kept_in(usual)["num_texts"] == whole["num_texts"] > kept_in(beside)["num_texts"] == 30
    assert all((tmp_path / f"exported/analysis/{name}.png").exists() for name in ("curve", "curve-2"))
    # The same texts without their scores are less as well.
    texts = [text for pair in pairs_of(TEXTS) for text in (pair.first, pair.second)]
    (tmp_path / "lines.txt").write_text("\n".join(texts), encoding="utf-8")
    assert analyzed(tiny_folder("bert"), "--texts", "lines.txt")["num_texts"] == whole["num_texts"]
    assert kept_in(usual)["num_pairs"] == whole["num_pairs"] > 0
    # Other texts, and another model, take its place.
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:8]), encoding="utf-8")
    analyzed(tiny_folder("bert"), "--texts", "few.txt")
    assert kept_in(usual)["num_texts"] == 8
    analyzed(*bert)
    analyzed(tiny_folder("electra"), "--data", pairs_file, "--max-texts", 30)
    assert kept_in(usual)["model"] == str(tiny_folder("electra"))


def test_texts_need_no_scores(analyzed, tmp_path, tiny_folder, pairs_file):
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS, TEXTS[0]]), encoding="utf-8")
    texts = (tiny_folder("bert"), "--texts", "lines.txt")
    found = analyzed(*texts)
    assert (found["spearman"], found["num_texts"], found["num_repeats"]) == (None, 60, 1)
    found = analyzed(*texts, "--data", pairs_file)
    assert (found["num_pairs"], len(found["spearman"])) == (80, 4)


def test_options_of_the_comparison(run, analyzed, tiny_folder, pairs_file):
    arguments = (tiny_folder("llama"), "--data", pairs_file)
    asked = ("--pooling", "last", "--estimator", "biased", "--kernel", "rbf", "--raw")
    found = LayerProfile.from_dict(analyzed(*arguments, *asked))
    encoder, pairs = load_encoder(tiny_folder("llama"), pooling="last"), load_pairs(pairs_file, divide=False).evaluation
    assert found == profile(encoder, pairs=pairs, settings=AnalysisSettings(estimator="biased", kernel="rbf", raw=True))
    assert "has no final norm" not in run("analyze", *arguments, "--raw")[1]
    assert "has no final norm" in run("analyze", tiny_folder("bert"), "--data", pairs_file, "--raw")[1]
    assert analyzed(*arguments, *asked, "--max-length", 4)["block_influence"] != found.block_influence
