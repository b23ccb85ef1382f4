"""Every file that is written says its format; those of each format that ever was are still read, later ones refused.

`formats/N` holds files as the version wrote them that had format N. Whoever raises `FORMAT` adds the next folder.
"""

import json
import shutil
from pathlib import Path

import pytest

from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.errors import FileProblemError, TruncateKitError
from truncate_kit.evaluation.sts import StsReport
from truncate_kit.export.record import read_exports
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult, LayerWeights
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.frozen.frozen_report import FrozenReport
from truncate_kit.methods.study.study_result import StudyResult
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.results import FORMAT
from truncate_kit.serving.encoded_file import EncodingNote
from truncate_kit.training.cutting import CutResult
from truncate_kit.training.journal import RECORDS_FILE
from truncate_kit.training.store import RunStore
from truncate_kit.training.trial import Trial
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
# Kept of the second format on: results of the commands that the first format's folder has none of.
LATER = {
    "profile.json": (LayerProfile, lambda found: found.num_texts, 300),
    "bench.json": (BenchReport, lambda found: found.num_texts, 239),
    "combination.json": (CombinationReport, lambda found: found.chosen, (0,)),
    "contrastive.json": (ContrastiveResult, lambda found: found.layer, 3),
    "attention.json": (LayerWeights, lambda found: found.texts[0], "sat red the cat dog"),
    "distill.json": (DistillResult, lambda found: found.chosen, (1,)),
    "frozen.json": (FrozenReport, lambda found: found.chosen_layer, 3),
    "study.json": (StudyResult, lambda found: len(found.rows), 2),
    "suite-sts.json": (StsReport, lambda found: found.runtime, "torch"),
}


@pytest.mark.parametrize("version", range(2, FORMAT + 1))
@pytest.mark.parametrize("name", LATER)
def test_results_of_every_command_are_read(version, name):
    kind, value, expected = LATER[name]
    assert value(kind.read(KEPT / str(version) / name)) == expected
    assert json.loads((KEPT / str(version) / name).read_text())["format"] == version


@pytest.mark.parametrize("name", LATER)
def test_their_later_formats_are_refused_and_edits_found(name, tmp_path):
    text = (KEPT / str(FORMAT) / name).read_text()
    (tmp_path / name).write_text(text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(FileProblemError, match="later version"):
        LATER[name][0].read(tmp_path / name)
    (tmp_path / name).write_text(text.replace("3", "4", 1))
    with pytest.raises(ValueError, match="changed after it was written"):
        LATER[name][0].read(tmp_path / name)


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
