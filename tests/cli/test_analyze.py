"""`truncate-kit analyze`: every option, what it prints and what it leaves."""

import json
from dataclasses import replace
from functools import partial

import matplotlib.image
import pytest

from tests.support.files import graded_file, kept_in
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.core.results import FORMAT
from truncate_kit.data.pairs import load_pairs
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.view import view_of


@pytest.fixture
def run(run):
    """Run `analyze`; return exit code, stdout and stderr."""
    return partial(run, "analyze")


@pytest.fixture
def pairs_file(tmp_path):
    return graded_file(tmp_path / "pairs.csv", pairs_of(TEXTS))


def _json(run, *arguments):
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_no_argument_analyses_the_bundled_miniature_on_the_bundled_pairs(run, tmp_path, drawn):
    code, out, err = run()
    assert code == 0
    assert "bundled miniature mini-electra-discriminator" in err
    assert "Data: bundled (train 2,500, dev 500, test 500 pairs)." in err
    assert "Scores run from 0 to 5" in err
    assert "Analyzed: bundled/test." in err
    written = LayerProfile.read(tmp_path / "exported/analysis/profile.json")
    assert f"{written.num_texts:,} distinct texts" in err
    assert view_of(written).sentences[-1] in out
    best = max(range(9), key=lambda layer: written.spearman[layer])
    ends = f"(Spearman {written.spearman[best]:.1f}, the last layer {written.spearman[8]:.1f})."
    assert " ".join(out.split()).count(f"Highest without further training: layer {best} {ends}") == 1
    for heading in ("layer", "parameters", "CKA (95 %)", "Block Influence", "effective rank", "anisotropy", "Spearman"):
        assert heading in out
    assert f"{written.parameters[8]:,}" in out
    assert f"{written.spearman[8]:.1f}" in out
    assert matplotlib.image.imread(tmp_path / "exported/analysis/curve.png").shape[1] == 1080
    assert written.model == "mini-electra-discriminator"
    assert written.reference == "mini-bert"
    assert written.num_pairs == 500


def test_json_alone_is_on_stdout_and_equals_the_library(run, tmp_path, tiny_folder, pairs_file):
    code, out, err = run(tiny_folder("bert"), "--data", pairs_file, "--scale", "0,5", "--json", "--workspace", "other")
    assert code == 0
    assert err == ""
    assert json.loads(out) == {"format": FORMAT} | kept_in(tmp_path / "other/analysis/profile.json")
    assert (tmp_path / "other/analysis/curve.png").exists()
    assert not (tmp_path / "exported").exists()
    encoder = load_encoder(tiny_folder("bert"))
    pairs = load_pairs(pairs_file, scale=(0, 5), divide=False).evaluation
    assert LayerProfile.from_dict(json.loads(out)) == profile(encoder, pairs=pairs)


def test_the_next_analysis_takes_up_model_and_data(run, tiny_folder, pairs_file):
    first = _json(run, tiny_folder("bert"), "--data", pairs_file, "--scale", "0,10")
    again = _json(run)
    assert again == first
    code, _, err = run()
    assert code == 0
    assert "as in the last command" in err
    assert "Scores run from 0 to 10 (as given)." in err


def test_a_shorter_analysis_of_the_same_texts_stands_beside_the_longer_one(run, tmp_path, tiny_folder, pairs_file):
    usual, beside = (tmp_path / f"exported/analysis/{name}.json" for name in ("profile", "profile-2"))
    bert = (tiny_folder("bert"), "--data", pairs_file)
    whole = _json(run, *bert)
    code, out, err = run(*bert, "--max-texts", 30)
    assert code == 0
    assert "profile.json is kept" in " ".join(err.split())
    assert "profile-2.json" in out
    assert kept_in(usual)["num_texts"] == whole["num_texts"] > kept_in(beside)["num_texts"] == 30
    assert all((tmp_path / f"exported/analysis/{name}.png").exists() for name in ("curve", "curve-2"))
    # The same texts without their scores are less as well.
    texts = [text for pair in pairs_of(TEXTS) for text in (pair.first, pair.second)]
    (tmp_path / "lines.txt").write_text("\n".join(texts), encoding="utf-8")
    assert _json(run, tiny_folder("bert"), "--texts", tmp_path / "lines.txt")["num_texts"] == whole["num_texts"]
    assert kept_in(usual)["num_pairs"] == whole["num_pairs"] > 0
    # Other texts, and another model, take its place.
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:8]), encoding="utf-8")
    _json(run, tiny_folder("bert"), "--texts", tmp_path / "few.txt")
    assert kept_in(usual)["num_texts"] == 8
    _json(run, *bert)
    _json(run, tiny_folder("electra"), "--data", pairs_file, "--max-texts", 30)
    assert kept_in(usual)["model"] == str(tiny_folder("electra"))


def test_texts_need_no_scores(run, tmp_path, tiny_folder, pairs_file):
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS, TEXTS[0]]), encoding="utf-8")
    found = _json(run, tiny_folder("bert"), "--texts", tmp_path / "lines.txt")
    assert found["spearman"] is None
    assert (found["num_texts"], found["num_repeats"]) == (60, 1)
    found = _json(run, tiny_folder("bert"), "--texts", tmp_path / "lines.txt", "--data", pairs_file)
    assert found["num_pairs"] == 80
    assert len(found["spearman"]) == 4
    found = _json(run, tiny_folder("bert"), "--texts", tmp_path / "lines.txt", "--max-texts", 20)
    assert (found["num_texts"], found["num_not_drawn"]) == (20, 40)


def test_options_of_the_comparison(run, tiny_folder, pairs_file):
    arguments = (tiny_folder("llama"), "--data", pairs_file)
    usual = _json(run, *arguments)
    assert (usual["pooling"], usual["estimator"], usual["kernel"], usual["raw"]) == (
        "mean",
        "debiased",
        "linear",
        False,
    )
    encoder, pairs = load_encoder(tiny_folder("llama")), load_pairs(pairs_file, divide=False).evaluation
    for options, values in (
        (("--pooling", "last"), {"pooling": "last"}),
        (("--estimator", "biased"), {"estimator": "biased"}),
        (("--kernel", "rbf"), {"kernel": "rbf"}),
        (("--raw",), {"raw": True}),
    ):
        found = _json(run, *arguments, *options)
        assert found["cka_matrix"] != usual["cka_matrix"]
        expected = profile(encoder, pairs=pairs, settings=AnalysisSettings(**values))
        # The command names a pooling when it loads the model, and the digest is of what was named.
        assert LayerProfile.from_dict(found) == replace(expected, encoder_digest=found["encoder_digest"])
    assert "has no final norm" not in run(*arguments, "--raw")[2]
    assert "has no final norm, so --raw has no effect." in run(tiny_folder("bert"), "--data", pairs_file, "--raw")[2]
    shorter = _json(run, *arguments, "--max-length", 4)
    assert shorter["block_influence"] != usual["block_influence"]
