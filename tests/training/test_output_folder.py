"""A method never replaces the model it started from, and only one works in a folder."""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pairs import word_splits
from tests.support.processes import Program
from truncate_kit.data.triplets import raw_texts
from truncate_kit.errors import FileProblemError, UsageError
from truncate_kit.files import run_lock
from truncate_kit.methods.contrast.running import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.models import load_encoder, save_encoder
from truncate_kit.store import output_folder
from truncate_kit.training.cutting import cut


def contrast(encoder, out):
    pairs = word_splits()
    rows = raw_texts("texts", pairs.train.texts())
    finetune_contrastive(encoder, rows, pairs, out=out, settings=ContrastiveSettings(objective="dropout"))


def tmft(encoder, out):
    finetune(encoder, word_splits(), out=out)


def freeze(encoder, out):
    finetune_frozen(encoder, word_splits(), out=out, settings=FrozenSettings(steps=("cosine",)))


METHODS = {"lean": [tmft, contrast, lambda encoder, out: cut(encoder, 1, out=out)], "full": [tmft], "frozen": [freeze]}
CASES = [(name, method) for name, methods in METHODS.items() for method in methods]


def contents(folder):
    return {
        file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(("name", "method"), CASES)
@pytest.mark.parametrize("linked", [False, True])
def test_the_model_it_started_from_is_not_replaced(name, method, linked, tiny_folder, tmp_path):
    out = tmp_path / "out"
    save_encoder(load_encoder(tiny_folder("bert")), out / name)
    before = contents(out)
    if linked:
        (tmp_path / "link").symlink_to(out)
    with pytest.raises(UsageError, match=f"{name} holds the model to start from"):
        method(load_encoder((tmp_path / "link" if linked else out) / name), out)
    assert contents(out) == before


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_folder_in_which_another_process_works_is_refused(name, method, tiny_folder, tmp_path):
    code = f"from pathlib import Path\nfrom truncate_kit.files import run_lock\nwith run_lock(Path({str(tmp_path)!r})):"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}\n print('held', flush=True)\n input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FileProblemError, match="Another process is working in"):
            method(load_encoder(tiny_folder("bert")), tmp_path)
        holder.communicate("\n")
    assert not (tmp_path / name).exists()


_KILLED = """
import os, sys
from pathlib import Path
from truncate_kit.data import BUNDLED, load_pairs
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.models import load_encoder
from truncate_kit.training.cutting import cut

def kill_before_the_record(event, arguments):
    if event == "open" and str(arguments[0]).endswith(f"/{record}") and "w" in str(arguments[1]):
        os.kill(os.getpid(), 9)

model, out, record, how = sys.argv[1:]
if how == "killed":
    sys.addaudithook(kill_before_the_record)
encoder = load_encoder(model)
if record == "cut.json":
    cut(encoder, 1, out=Path(out))
else:
    texts = list(dict.fromkeys(load_pairs(BUNDLED).texts()))[:300]
    settings = DistillSettings(batch_size=16, learning_rate=1e-3, held_out=100)
    distill(encoder, texts, out=Path(out), budget=Budget(blocks=[1]), settings=settings)
"""


@pytest.mark.parametrize("record", ["cut.json", "distill.json"])
def test_a_model_stands_only_with_the_record_of_what_it_was_made_from(record, tiny_folder, tmp_path):
    """Without it `cut` would take its own model for one that was trained, and refuse to replace it."""
    save_encoder(load_encoder(tiny_folder("electra")), tmp_path / "lean", model_card="of before")
    before = contents(tmp_path / "lean")
    assert Program(_KILLED, tiny_folder("bert"), tmp_path, record, "killed").returncode == -signal.SIGKILL
    assert contents(tmp_path / "lean") == before
    assert Program(_KILLED, tiny_folder("bert"), tmp_path, record, "whole").returncode == 0
    assert {Path(record)} < contents(tmp_path / "lean").keys()


def test_a_hub_name_and_a_folder_beside_are_no_reason_to_refuse(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    save_encoder(encoder, tmp_path / "combined")
    with output_folder(tmp_path, load_encoder(tmp_path / "combined"), "lean", "full"):
        pass
    encoder.name = "owner/lean"
    with output_folder(tmp_path, encoder, "lean"):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("of the user")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FileProblemError, match="Cannot write"), run_lock(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "of the user"


@pytest.mark.parametrize("file", ["pairs.csv", "inner/texts.txt", "corpus.jsonl.gz"])
def test_data_in_a_folder_that_would_be_replaced_is_not_removed(tiny_folder, tmp_path, file):
    encoder, own = load_encoder(tiny_folder("bert")), tmp_path / "lean" / file
    own.parent.mkdir(parents=True)
    own.write_text("a")
    (tmp_path / "lean" / "vocab.txt").write_text("a part of a model")
    with pytest.raises(UsageError, match="no part of a model"), output_folder(tmp_path, encoder, "lean"):
        pass
    own.unlink()
    with output_folder(tmp_path, encoder, "lean"):
        pass


def test_links_in_a_circle_are_a_place_that_cannot_be_written(tiny_folder, tmp_path):
    (tmp_path / "out").symlink_to("out")
    with pytest.raises(FileProblemError), output_folder(tmp_path / "out", load_encoder(tiny_folder("bert")), "lean"):
        pass
