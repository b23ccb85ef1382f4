"""What a saved folder says of its model, and what follows from it for a comparison."""

import shutil
from dataclasses import replace

import pytest

from tests.support.pairs import TEXTS, make_pairs
from tests.support.training import swept
from truncate_kit.bench.run import Subject, compare_training
from truncate_kit.core.workspace import read_origin, was_trained
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.triplets import raw_texts
from truncate_kit.export.exporting import export_onnx
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.training.cutting import cut
from truncate_kit.training.settings import TrainingSettings

DATA = PairSplits(name="pairs", train=make_pairs(24), dev=make_pairs(12, 1), test=make_pairs(12, 2))


@pytest.fixture
def plain(tiny_folder, tmp_path):
    """A transformer as it was pretrained, without modules.json."""
    return shutil.copytree(tiny_folder("bert"), tmp_path / "plain")


@pytest.fixture
def tuned(plain, tmp_path):
    """A sentence-transformers folder."""
    return save_encoder(load_encoder(plain), tmp_path / "tuned")


def tune(encoder, out):
    swept(encoder, out, DATA, TrainingSettings(epochs=1), layers="1")


def contrast(encoder, out):
    settings = ContrastiveSettings(objective="dropout", pooling="mean", epochs=1, batch_size=8, seeds=(0,), dropout=0.1,
                                   layer=2)  # fmt: skip
    rows = raw_texts("texts", [f"{text} {number}" for text in TEXTS for number in range(9)])
    finetune_contrastive(encoder, rows, DATA, out=out, settings=settings)


def freeze(encoder, out):
    settings = FrozenSettings(steps=("cosine",), epochs=1, seeds=(0,), layers="2")
    finetune_frozen(encoder, DATA, out=out, settings=settings)


def distil(encoder, out):
    texts = [f"{text} {number}" for text in TEXTS for number in range(40)]
    settings = DistillSettings(epochs=1, batch_size=8, learning_rate=1e-3)
    distill(encoder, texts, out=out, budget=Budget(blocks="1,3"), settings=settings)


METHODS = {
    "cut": (lambda encoder, out: cut(encoder, (1, 3), out=out), "lean", "{}, blocks 1, 3 of 3, not trained"),
    "finetune": (tune, "lean", "{}, layer 1 of 3, fine-tuned on pairs"),
    "distill": (distil, "lean", "{}, blocks 1, 3 of 3, distilled from raw text"),
    "contrast": (contrast, "lean", "{}, layer 2 of 3, trained contrastively"),
    "freeze": (freeze, "frozen", "{}, heads on 2 of 3 frozen blocks"),
    "copy": (lambda encoder, out: export_onnx(encoder, out / "lean"), "lean", "{}, unchanged"),
}


@pytest.fixture
def compared(tmp_path):
    """How far the scores of two folders may be compared."""

    def check(lean, full, blocks=None):
        return compare_training(Subject("lean", lean, tmp_path, blocks=blocks), Subject("full", full, tmp_path))

    return check


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_made(method, plain, compared, tmp_path):
    make, folder, words = METHODS[method]
    source = load_encoder(plain)
    make(source, tmp_path / "out")
    found, lean = read_origin(tmp_path / "out" / folder), load_encoder(tmp_path / "out" / folder)
    assert (found.method, found.model, found.source_digest) == (method, str(plain), encoder_digest(source))
    assert found.words == words.format(plain)
    assert (found.layer, found.depth, found.parameters) == (lean.depth, 3, lean.num_parameters)
    assert found.trained is lean.trained is (method not in ("cut", "copy"))
    learned = method in ("finetune", "contrast", "freeze")
    assert (found.data, found.fingerprint) == (("pairs", DATA.fingerprint()) if learned else ("", ""))
    assert set(found.versions) == {"truncate-kit", "torch", "transformers"}
    if method == "distill":  # a student is compared with its teacher
        assert (
            compared(tmp_path / "out/lean", plain) == compared(tmp_path / "out/lean", tmp_path / "out/full") == "fair"
        )


def test_what_says_nothing_of_itself_or_is_damaged(plain, tuned, tmp_path):
    for text in ("{", "[]", "{}"):
        (tuned / "origin.json").write_text(text)
        assert read_origin(tuned) is None
    assert was_trained(plain) is False
    assert was_trained(tuned) is True
    assert was_trained(tmp_path) is None
    assert read_origin("mini-bert") is None


@pytest.mark.parametrize("kept", [1, (1, 3)])
def test_a_cut_is_a_part_and_trained_as_its_source(plain, tuned, compared, tmp_path, kept):
    cut(load_encoder(plain), kept, out=tmp_path / "a")
    assert compared(tmp_path / "a/lean", plain) == "part"
    assert compared(tmp_path / "a/lean", tuned) in ("part", "unfair")
    cut(load_encoder(tuned), kept, out=tmp_path / "b")
    assert was_trained(tmp_path / "b/lean") is True
    assert compared(tmp_path / "b/lean", tuned) == "part"
    facts = Subject("lean", tmp_path / "b/lean", tmp_path / "scratch").facts
    assert facts.blocks == (kept if kept == (1, 3) else None)


def test_blocks_that_a_bench_keeps_are_a_part_too(plain, tuned, compared):
    assert compared(plain, plain, blocks=(1, 3)) == "part"
    assert compared(tuned, tuned, blocks=(1, 3)) == "part"
    assert compared(tuned, plain, blocks=(1, 3)) == "unfair"


def test_one_call_of_finetune_gives_both_the_same_budget(plain, compared, tmp_path):
    tune(load_encoder(plain), tmp_path / "run")
    lean, full = tmp_path / "run/lean", tmp_path / "run/full"
    assert compared(lean, full) == "fair"
    assert compared(lean, shutil.copytree(full, tmp_path / "elsewhere")) == "fair"
    other = read_origin(full)
    replace(other, settings=other.settings | {"epochs": 9}).write(full / "origin.json")
    assert compared(lean, full) == "unknown budget"
    (full / "origin.json").unlink()
    assert compared(lean, full) == "unknown budget"
