"""`truncate-kit combine`: what it prints, writes and refuses."""

from dataclasses import replace

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.support.commands import fails, run, run_both, run_json
from tests.support.files import graded_file
from tests.support.pairs import make_pairs, sentence_pairs
from truncate_kit.core.workspace import read_origin
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.seen import seen_among
from truncate_kit.methods.bert_lc.combine import combined_encoder, divide
from truncate_kit.methods.bert_lc.settings import CombinationReport
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import layer_states


@pytest.fixture
def pairs_file(tmp_path):
    return graded_file(tmp_path / "pairs.csv", sentence_pairs(40))


def test_the_winner_is_saved_and_scored(encoder, tiny_folder, pairs_file, tmp_path, capsys):
    out = tmp_path / "out"
    shown = run(capsys, "combine", tiny_folder("bert"), "--data", pairs_file, "--splits", "2", "--workspace", out)
    report = CombinationReport.read(out / "combination/combination.json")
    chosen = f"mean of layer{'s' * (len(report.chosen) > 1)} {', '.join(map(str, report.chosen))}"
    assert f"Chosen: {chosen} (dev {report.chosen_dev:.2f}" in shown
    written = {"combination.json", "sizes.png", "without.png"}
    assert {path.name for path in (out / "combination").iterdir()} == written
    assert chosen in (out / "combined/README.md").read_text()
    # Its vectors, from the folder as sentence-transformers reads it.
    states = encoder.hidden_states(encoder.tokenize(["a red dog"]))
    expected = torch.stack([states[layer].mean(dim=1) for layer in report.chosen]).mean(dim=0)
    found = SentenceTransformer(str(out / "combined"), device="cpu").encode(["a red dog"])
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-5, rtol=1e-4)
    origin = read_origin(out / "combined")
    assert (origin.method, origin.trained, origin.settings["layers"]) == ("combine", False, [*report.chosen])
    assert origin.words.endswith(" combined")
    assert seen_among(make_pairs(9), out / "combined") is None
    _, said = run_both(capsys, "evaluate", out / "combined", "--data", pairs_file, "--workspace", out)
    assert "were selected on some of these pairs" in " ".join(said.split())


def test_it_starts_from_what_finetune_left_and_prints_json(tiny_folder, pairs_file, tmp_path, capsys):
    save_encoder(load_encoder(tiny_folder("electra")), tmp_path / "exported/lean")
    options = ["--data", pairs_file, "--splits", "1", "--dev-pairs", "12", "--layers-up-to", "2", "--search", "beam"]
    report = run_json(capsys, "combine", *options)
    (split,) = report["splits"]
    assert (report["model"], report["method"], split["num_dev"]) == ("exported/lean", "beam", 12)
    assert max(len(layers) for layers, *_ in split["by_size"]) == 2


def graded(path, vectors_of, levels=11):
    """Pairs graded by how alike their texts are to these vectors: what gives them will win."""
    pairs = [pair for pair in sentence_pairs(50) if pair.first != pair.second]
    first, second = (vectors_of([getattr(pair, side) for pair in pairs]) for side in ("first", "second"))
    ranks = torch.cosine_similarity(first, second).argsort().argsort().tolist()
    grades = [rank * levels // len(pairs) for rank in ranks]
    return graded_file(path, [replace(pair, target=grade) for pair, grade in zip(pairs, grades, strict=True)])


@pytest.mark.parametrize(
    ("name", "layers", "over", "tokens"),
    [
        ("bert", (0, 2), "max", "mean"),
        ("gpt2", (1, 2), "mean", "mean"),
        ("electra", (0, 1, 3), "mean", "max"),
        ("llama", (0, 3), "max", "last"),
    ],
)
def test_the_saved_winner_scores_what_the_search_found(tiny_folder, name, layers, over, tokens, tmp_path, capsys):
    """On the pairs it was chosen on, and on all others."""
    folder = tiny_folder(name)
    model = save_encoder(load_encoder(folder, pooling=tokens), tmp_path / "model")
    data = graded(tmp_path / "pairs.csv", combined_encoder(load_encoder(model), layers, over=over).vectors)
    out = tmp_path / "out"
    options = ("--data", data, "--splits", "1", "--dev-pairs", "24", "--workspace", out)
    shown = run(capsys, "combine", model, "--over", over, *options)
    report = CombinationReport.read(out / "combination/combination.json")
    assert report.chosen == layers
    assert "trust_remote_code=True" in shown
    pairs = load_pairs(data, divide=False).train
    (dev, _), (test, _) = divide(pairs, 0, report.splits[0].num_dev)
    for places, expected in ((dev, report.splits[0].best[1]), (test, report.unseen)):
        some = graded_file(tmp_path / "some.csv", [pairs.pairs[place] for place in places])
        found = run_json(capsys, "evaluate", out / "combined", "--data", some, "--workspace", out)
        assert found["means"]["Spearman"] == pytest.approx(expected, abs=1e-6)
        assert 90 < expected < 99.99


def test_what_no_folder_can_hold_is_reported_and_not_saved(tiny_folder, tmp_path, capsys):
    """ModernBERT's class does not run without blocks."""
    encoder, out = load_encoder(tiny_folder("modernbert")), tmp_path / "out"
    data = graded(tmp_path / "pairs.csv", lambda texts: layer_states(encoder, texts)[0])
    options = ("--data", data, "--splits", "1", "--dev-pairs", "24", "--workspace", out)
    problem = fails(capsys, "combine", tiny_folder("modernbert"), *options)
    assert "A modernbert model cannot be cut at layer 0" in problem
    assert CombinationReport.read(out / "combination/combination.json").chosen == (0,)
    assert not (out / "combined").exists()
