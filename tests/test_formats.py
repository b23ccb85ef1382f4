"""Every file that is written says its format; those of each format that ever was are still read, later ones refused.

`formats/N` holds files as the version wrote them that had format N. Whoever raises `FORMAT` adds the next folder.
"""

import json
import shutil
from pathlib import Path

import pytest

from truncate_kit.errors import FileProblemError, TruncateKitError
from truncate_kit.export.record import read_exports
from truncate_kit.results import FORMAT
from truncate_kit.runs.cutting import CutResult
from truncate_kit.runs.store import RECORDS_FILE, RunStore
from truncate_kit.runs.trial import Trial
from truncate_kit.serving.encoded_file import EncodingNote
from truncate_kit.sweep.sweep_result import SweepResult
from truncate_kit.workspace.places import Workspace

KEPT = Path(__file__).parent / "formats"
STORE = "cffe26a345801bbd"
READERS = {
    "sweep.json": lambda folder: SweepResult.read(folder / "sweep.json").lean.test,
    "workspace.json": lambda folder: Workspace(folder).remembered().model.name,
    "cut.json": lambda folder: CutResult.read(folder / "cut.json").parameters,
    "vectors.npy.json": lambda folder: EncodingNote.read(folder / "vectors.npy.json").job.num_texts,
    "export.json": lambda folder: read_exports(folder).graphs[0].file,
    RECORDS_FILE: lambda folder: RunStore(folder, STORE).read("layer01-seed0-epochs1", Trial).test,
}
SAID = {
    "sweep.json": 88.27348295047494,
    "workspace.json": "mini-bert",
    "cut.json": 1_462_016,
    "vectors.npy.json": 19,
    "export.json": "model.onnx",
    RECORDS_FILE: 88.27348295047494,
}


def versions(file):
    return [json.loads(line).get("format", 1) for line in file.read_text().splitlines() if '"format"' in line]


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
@pytest.mark.parametrize("name", READERS)
def test_files_of_every_format_are_read(version, name):
    assert READERS[name](KEPT / str(version)) == SAID[name]


@pytest.mark.parametrize("name", READERS)
def test_the_newest_kept_files_say_the_format_that_is_written(name):
    file = KEPT / str(FORMAT) / name
    written = versions(file) if name == RECORDS_FILE else [json.loads(file.read_text())["format"]]
    assert written == [FORMAT]


@pytest.mark.parametrize("name", READERS)
def test_a_later_format_is_refused_by_every_reader(tmp_path, name):
    shutil.copy(KEPT / str(FORMAT) / name, tmp_path)
    lines = (tmp_path / name).read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    if name == RECORDS_FILE:  # of lines only whole ones count: this one as a later version would write it
        lines = json.dumps({"store": STORE, "kind": "settings", "format": FORMAT + 1}) + "\n"
    (tmp_path / name).write_text(lines)
    with pytest.raises(FileProblemError, match="later version") as refused:
        READERS[name](tmp_path)
    assert name in str(refused.value)
    assert "Update" in refused.value.hint


@pytest.mark.parametrize("name", sorted(set(READERS) - {RECORDS_FILE}))
def test_an_edited_file_of_the_newest_format_is_not_taken_as_it_is(tmp_path, name):
    shutil.copy(KEPT / str(FORMAT) / name, tmp_path)
    changed = (tmp_path / name).read_text().translate(str.maketrans("b8", "d3"))
    (tmp_path / name).write_text(changed)
    try:
        assert READERS[name](tmp_path) != SAID[name]
    except (ValueError, TruncateKitError, AttributeError):
        return  # refused, or passed over
    pytest.fail("an edited number was read")
