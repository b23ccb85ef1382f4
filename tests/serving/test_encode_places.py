"""Where vectors are written: nothing that others put there is followed, waited for, or overwritten."""

import os

import pytest

from truncate_kit.encode import encode_file
from truncate_kit.errors import FileProblemError, UsageError
from truncate_kit.models import load_encoder


@pytest.fixture
def work(tiny_folder, tmp_path):
    """What encodes a file of two texts, and the folder of all files."""
    (tmp_path / "texts.txt").write_text("the cat\na dog\n")
    encoder = load_encoder(tiny_folder("bert"))
    return lambda: encode_file(encoder, tmp_path / "texts.txt", tmp_path / "v.npy"), tmp_path


@pytest.mark.parametrize("name", [".v.npy.part", ".v.npy.part/vectors.npy", ".v.npy.part/vectors.jsonl"])
def test_links_in_the_place_of_our_own_files_are_not_followed(work, name):
    encode, folder = work
    (folder / ".v.npy.part").mkdir()
    if name == ".v.npy.part":
        (folder / name).rename(folder / "mine")
    else:
        (folder / "mine").write_bytes(b"mine")
    (folder / name).symlink_to(folder / "mine")
    mine = folder / "mine"
    if name.endswith(".jsonl"):  # holds no record of ours, so it is begun anew
        encode()
    else:
        with pytest.raises((UsageError, FileProblemError), match="link"):
            encode()
        assert not (folder / "v.npy").exists()
    assert (list(mine.iterdir()) == []) if mine.is_dir() else (mine.read_bytes() == b"mine")


def test_a_link_in_the_place_of_the_output_is_replaced_and_its_end_stays(work):
    encode, folder = work
    (folder / "v.npy").symlink_to(folder / "nowhere")
    encode()
    assert not (folder / "v.npy").is_symlink()
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("other", ["/dev/zero", "pipe", "."])
def test_an_output_that_became_a_device_is_not_waited_for(work, other):
    encode, folder = work
    encode()
    os.mkfifo(folder / "pipe")
    (folder / "v.npy").unlink()
    (folder / "v.npy").symlink_to(other)
    with pytest.raises(UsageError, match="there already"):
        encode()


def test_a_file_of_the_name_of_the_note_is_not_overwritten(work):
    encode, folder = work
    (folder / "v.npy.json").write_text('{"mine": 1}')
    with pytest.raises(UsageError, match=r"v\.npy\.json is there already"):
        encode()
    assert (folder / "v.npy.json").read_text() == '{"mine": 1}'
