"""`cut` and `export` with `--vocabulary-from`: the folder they leave, and what they say of it."""

import numpy as np
import pytest
import torch

from tests.support.commands import fails, run, run_both, run_json
from tests.support.files import write_table
from tests.support.word_pieces import make_splitting, sentences
from truncate_kit.core.results import FORMAT
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.learning import AgreementEvaluator, TextStore
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep_words, piece_ids, truncate
from truncate_kit.training.cutting import CutResult

TEXTS = list(dict.fromkeys(sentences(30, 1)))


@pytest.fixture
def model(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    rows = [(text, TEXTS[3], n % 6) for n, text in enumerate(TEXTS[:9])]
    write_table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "score"), rows)
    return make_splitting("bert", tmp_path / "model")


def test_cut_keeps_the_vectors_of_the_texts_and_says_what_it_did(model, tmp_path, capsys):
    out = run(capsys, "cut", model, "--vocabulary-from", "texts.txt")
    whole, lean = load_encoder(model), load_encoder(tmp_path / "exported/lean")
    assert torch.equal(lean.vectors(TEXTS), whole.vectors(TEXTS))
    result = CutResult.read(tmp_path / "exported/lean/cut.json")
    assert (result.layer, result.depth, result.parameters) == (3, 3, lean.num_parameters)
    words = result.vocabulary
    assert (words.texts, words.held_out) == (30, 3)
    assert (words.pieces, words.full_pieces) == (len(lean.tokenizer), len(whole.tokenizer))
    assert (words.model_bytes, words.full_model_bytes) == (4 * lean.num_parameters, 4 * whole.num_parameters)
    others = keep_words(whole, [text for place, text in enumerate(TEXTS) if place % 10 != 9]).tokenizer.get_vocab()
    ids = [[piece for piece in row if piece > 4] for row in piece_ids(whole, TEXTS[9::10])]
    known = [[whole.tokenizer.convert_ids_to_tokens(piece) in others for piece in row] for row in ids]
    assert words.covered_pieces == sum(map(sum, known)) / sum(map(len, known))
    assert words.covered_texts == sum(map(all, known)) / 3
    card = (tmp_path / "exported/lean/README.md").read_text()
    for text in (out, card):
        assert f"{words.pieces} of {words.full_pieces} word pieces are kept" in text
        assert f"{100 * words.covered_pieces:.2f} %" in text
    assert f"{words.pieces} of {words.full_pieces} word pieces" in run(capsys, "status")
    found = run_json(capsys, "cut", model, "--vocabulary-from", "texts.txt")
    assert found == {"format": FORMAT} | result.to_dict()


def test_export_traces_the_cut_model_beside_its_tokenizer(model, tmp_path, capsys):
    asked = ("--vocabulary-from", "texts.txt", "--layer", 1, "--data", "pairs.csv")
    assert "word pieces are kept" in run_both(capsys, "export", model, "--onnx", *asked)[1]
    assert "word pieces" in run_both(capsys, "encode", "texts.txt", "--out", "vectors.npy")[1]
    expected = truncate(load_encoder(model), 1).vectors(TEXTS)
    torch.testing.assert_close(
        OnnxEncoder.load(tmp_path / "exported/lean").vectors(TEXTS), expected, atol=1e-4, rtol=1e-4
    )
    before = (tmp_path / "exported/lean/cut.json").read_text()
    assert "would replace" in fails(capsys, "export", "exported/lean", "--onnx", *asked)
    assert (tmp_path / "exported/lean/cut.json").read_text() == before


def test_distill_drops_word_pieces_of_the_lean_model_alone(model, tmp_path, capsys):
    lines = [f"{one} {other}" for one in TEXTS[:15] for other in TEXTS[15:]]
    (tmp_path / "raw.txt").write_text("\n".join(lines))
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:12]))
    asked = ("--texts", "raw.txt", "--blocks", 1, "--queries", "texts.txt")
    result = run_json(capsys, "distill", model, *asked, "--vocabulary-from", "few.txt")
    whole, lean, full = (load_encoder(path) for path in (model, *(f"exported/{name}" for name in ("lean", "full"))))
    assert encoder_digest(full) == encoder_digest(whole)  # the teacher, and what lean is compared with
    words = result["vocabulary"]
    assert words["pieces"] == len(lean.tokenizer) < words["full_pieces"] == len(whole.tokenizer)
    assert words["model_bytes"] == 4 * lean.num_parameters
    assert result["candidates"][0]["megabytes"] == pytest.approx(4 * lean.num_parameters / 1e6)
    card = (tmp_path / "exported/lean/README.md").read_text()
    assert f"{words['pieces']} of {words['full_pieces']} word pieces are kept" in card
    store = TextStore(tmp_path / "exported/distillation/texts")
    order = np.random.default_rng(0).permutation(len(store))[:82][41:]
    texts = dict(zip(sorted(order), store.read(order), strict=True))
    some = [texts[place] for place in order]
    # Of pieces chosen without the texts that report: a query of those that chose them may be one.
    unseen = keep_words(lean, [text for text in TEXTS[:12] if text not in some])
    evaluator = AgreementEvaluator(whole.token_ids(some), whole.vectors(some).half().float())  # as they are kept
    wanted = evaluator.agreement_of(unseen.vectors(some))
    (student,) = (one for one in result["candidates"] if one["blocks"] == result["chosen"])
    assert student["agreement"]["correlation"] == pytest.approx(wanted.correlation, abs=1e-3)
    plain = run_json(capsys, "distill", model, *asked)  # has learned already
    (before,) = (one for one in plain["candidates"] if one["blocks"] == result["chosen"])
    assert (before["scores"], plain["vocabulary"]) == (student["scores"], None)
    assert result["all_words"] == before["agreement"]
    every = evaluator.agreement_of(load_encoder("exported/lean").vectors(some))  # with every piece
    assert before["agreement"]["correlation"] == pytest.approx(every.correlation, abs=1e-3)
    assert before["agreement"]["correlation"] > student["agreement"]["correlation"] + 1
