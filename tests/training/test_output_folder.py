"""A method never replaces the model it started from, and only one works in a folder."""

import hashlib

import pytest

from tests.support.pairs import word_splits
from tests.support.training import swept
from truncate_kit.core.errors import FileProblemError, UsageError
from truncate_kit.core.files import run_lock
from truncate_kit.data.triplets import raw_texts
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import output_folder
from truncate_kit.training.cutting import cut


def contrast(encoder, out):
    pairs = word_splits()
    rows = raw_texts("texts", pairs.train.texts())
    finetune_contrastive(encoder, rows, pairs, out=out, settings=ContrastiveSettings(objective="dropout"))


def freeze(encoder, out):
    finetune_frozen(encoder, word_splits(), out=out, settings=FrozenSettings(steps=("cosine",)))


CASES = [("lean", swept), ("lean", contrast), ("lean", lambda encoder, out: cut(encoder, 1, out=out))]
CASES += [("full", swept), ("frozen", freeze)]


def contents(folder):
    return {
        file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


@pytest.mark.parametrize(("name", "method"), CASES)
def test_neither_its_own_model_nor_a_folder_of_another_process_is_touched(name, method, tiny_folder, tmp_path):
    out = tmp_path / "out"
    save_encoder(load_encoder(tiny_folder("bert")), out / name)
    before = contents(out)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(UsageError, match=f"{name} holds the model to start from"):
        method(load_encoder(tmp_path / "link" / name), out)
    with run_lock(out), pytest.raises(FileProblemError, match="Another process is working in"):
        method(load_encoder(tiny_folder("bert")), out)
    assert contents(out) == before


def test_a_hub_name_and_a_folder_beside_are_no_reason_to_refuse(encoder, tmp_path):
    save_encoder(encoder, tmp_path / "combined")
    with output_folder(tmp_path, load_encoder(tmp_path / "combined"), "lean", "full"):
        pass
    encoder.name = "owner/lean"
    with output_folder(tmp_path, encoder, "lean"):
        pass


@pytest.mark.parametrize("file", ["pairs.csv", "inner/corpus.jsonl.gz"])
def test_data_in_a_folder_that_would_be_replaced_is_not_removed(tiny_folder, tmp_path, file):
    encoder, own = load_encoder(tiny_folder("bert")), tmp_path / "lean" / file
    own.parent.mkdir(parents=True)
    own.write_text("a")
    (tmp_path / "lean" / "vocab.txt").write_text("a part of a model")
    with pytest.raises(UsageError, match="not a model file"), output_folder(tmp_path, encoder, "lean"):
        pass
    own.unlink()
    with output_folder(tmp_path, encoder, "lean"):
        pass
