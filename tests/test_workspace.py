"""What a workspace holds; what `clean` frees, and that the same call gives the same result after it."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.made_results import a_distillation, write_run
from tests.support.pairs import make_pairs
from tests.support.training import swept as trained
from truncate_kit.core.errors import DivergedError, FileProblemError, UsageError
from truncate_kit.core.files import run_lock
from truncate_kit.core.workspace import ORIGIN_FILE, Source, Workspace, clean, contents, read_origin
from truncate_kit.data.pairs import PairSplits
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import RunStore
from truncate_kit.training.settings import TrainingSettings

DATA = PairSplits(name="pairs", train=make_pairs(24), dev=make_pairs(12, 1), test=make_pairs(12, 2))


def sweep(model: Path, folder: Path):
    return trained(load_encoder(model), folder, DATA, TrainingSettings(epochs=1), layers="1,2")


@pytest.fixture(scope="module")
def swept(tiny_folder, tmp_path_factory):
    """A workspace after a sweep, its result, and the model it began with."""
    folder = tmp_path_factory.mktemp("work")
    return folder, sweep(tiny_folder("bert"), folder), tiny_folder("bert")


@pytest.fixture
def workspace(swept, tmp_path):
    return Workspace(Path(shutil.copytree(swept[0], tmp_path / "work.tmp")))  # no temporary folder of ours


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_models_runs_and_sizes(workspace, swept):
    found, result = contents(workspace), swept[1]
    assert found.file_bytes == size(workspace.folder)
    assert [model.path for model in found.models] == [str(workspace.full), str(workspace.lean)]
    assert [model.file_bytes for model in found.models] == [size(workspace.full), size(workspace.lean)]
    assert found.models[1].origin == f"{result.model}, layer {result.chosen} of 3, fine-tuned on pairs"
    (run,) = found.runs
    weights = [path for path in Path(run.path).iterdir() if path.is_dir()]
    assert weights  # copies of the saved models
    assert run.spare_bytes == found.spare_bytes == sum(map(size, weights))
    assert (run.finished, run.waiting) == (3, 0)
    assert "sweep.json" in found.reports
    assert not [name for name in found.reports if name.startswith(("lean", "trials/"))]


def test_clean_frees_copies_and_the_same_call_gives_the_same_result(workspace, swept, tmp_path):
    _, result, model = swept
    left = workspace.lean / ".scores.csv.abcdefgh.tmp"
    left.mkdir()
    (left / "scores.csv").write_bytes(b"half" * 1000)
    lean = (workspace.lean / "model.safetensors").read_bytes()
    before, spare = size(workspace.folder), contents(workspace).spare_bytes
    found = clean(workspace)
    assert found.freed_bytes == spare + 4000 == before - size(workspace.folder)
    assert found.spare_bytes == 0
    assert not left.exists()
    assert (workspace.lean / "model.safetensors").read_bytes() == lean
    again = sweep(model, workspace.folder)
    assert again.to_dict() | {"seconds": 0} == result.to_dict() | {"seconds": 0}
    assert (workspace.lean / "model.safetensors").read_bytes() == lean
    assert clean(Workspace(tmp_path / "nowhere")).file_bytes == 0


def test_an_adapted_model_stays_while_trials_wait(workspace):
    """A study writes its results after the first model; what the next one begins with may have taken days."""
    home = workspace.folder / "study"
    for run in ("adapted/0123456789abcdef", "trials/fedcba9876543210"):
        (home / run).mkdir(parents=True)
        (home / run / "weights.safetensors").write_bytes(b"weights")
        (home / run).parent.joinpath("trials.jsonl").touch()
    (home / "study.json").write_text("{}")
    waiting = home / "trials/fedcba9876543210"
    (waiting / ".unfinished").touch()
    clean(workspace)
    assert len(list(home.rglob("weights.safetensors"))) == 2
    (waiting / ".unfinished").unlink()
    with run_lock(home), pytest.raises(FileProblemError):  # a study that runs
        clean(workspace)
    assert len(list(home.rglob("weights.safetensors"))) == 2
    clean(workspace)
    assert not list(home.rglob("weights.safetensors"))


def test_what_links_point_to_is_neither_counted_nor_removed(workspace, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/weights.safetensors").write_bytes(b"mine")
    run = Path(contents(workspace).runs[0].path)
    (run.parent / "0123456789abcdef").symlink_to(tmp_path / "precious")
    (run / "layer09-seed0-epochs1").symlink_to(tmp_path / "precious")
    assert [Path(found.path) for found in contents(workspace).runs] == [run]
    clean(workspace)
    assert (tmp_path / "precious/weights.safetensors").read_bytes() == b"mine"


def test_graphs_that_bench_made_are_spare_and_what_somebody_else_keeps_there_stays(workspace, tmp_path):
    files = ("0123456789abcdef" * 4 + "/model.onnx", "notes/mine.txt", "0123/mine.txt", "plot.csv")
    for file in files:
        (workspace.graphs / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace.graphs / file).write_bytes(b"content")
    found = contents(workspace)
    assert found.kept == {str(workspace.graphs): 7 * len(files)}
    assert found.spare_bytes == 7 + found.runs[0].spare_bytes
    clean(workspace)
    assert sorted(path.name for path in workspace.graphs.iterdir()) == ["0123", "notes", "plot.csv"]
    foreign = tmp_path / "paper"
    (foreign / "graphs/0123456789abcdef").mkdir(parents=True)
    (foreign / ".notes.abcdefgh.tmp").mkdir()
    with pytest.raises(UsageError, match="is not a workspace"):
        clean(Workspace(foreign))
    assert sorted(path.name for path in foreign.iterdir()) == [".notes.abcdefgh.tmp", "graphs"]


def test_what_was_stopped_keeps_everything_although_something_else_ended(workspace):
    """Between two trials there is no checkpoint: a second sweep after a finished one, stopped there."""
    trial = workspace.folder / "trials" / ("0" * 16) / "layer03-seed0-epochs4"
    for error, stays in ((KeyboardInterrupt(), True), (DivergedError("It would again.", hint="None."), False)):
        with suppress(KeyboardInterrupt, DivergedError), RunStore(trial.parents[1], trial.parent.name).open():
            trial.mkdir()
            raise error
        assert [one.waiting for one in contents(workspace).runs if one.path == str(trial.parent)] == [stays]
        clean(workspace)
        assert trial.is_dir() == stays
        if stays:
            trial.rmdir()


def test_a_run_that_waits_or_works_keeps_everything(workspace):
    run = Path(contents(workspace).runs[0].path)
    with run_lock(workspace.folder), pytest.raises(FileProblemError, match="Another process"):
        clean(workspace)
    waiting = run / "layer02-seed1-epochs1.checkpoint"
    waiting.write_bytes(b"state")
    before = size(workspace.folder)
    assert (contents(workspace).runs[0].waiting, clean(workspace).freed_bytes) == (1, 0)
    waiting.unlink()
    (workspace.folder / "sweep.json").unlink()  # the sweep was killed between two trials
    assert clean(workspace).freed_bytes == 0
    assert size(workspace.folder) < before


def test_a_workspace_inside_another_is_left_alone(workspace, swept):
    """As that of the BERT in the demo's."""
    alone = contents(workspace)
    inner = Workspace(Path(shutil.copytree(swept[0], workspace.folder / "inner")))
    inner.remember(Source("one"), None)
    found = contents(workspace)
    assert (found.models, found.runs, found.reports) == (alone.models, alone.runs, alone.reports)
    before = contents(inner)
    clean(workspace)
    assert contents(inner) == before


def test_a_model_made_from_another_one_is_named_with_its_graphs(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini <b>").mkdir()
    workspace = Workspace(write_run(tmp_path / "run", tiny_folder("bert")))
    for same in ("mini <b>", str(tmp_path / "mini <b>")):
        assert workspace.replaced_by(same) is None
    assert "mini <b>" in workspace.replaced_by("another")
    assert "model.onnx" in workspace.replaced_by("another")
    made = read_origin(workspace.lean)
    replace(made, method="copy").write(workspace.lean / ORIGIN_FILE)
    assert "its graphs: model.onnx" in workspace.replaced_by("mini <b>")
    assert Workspace(tmp_path / "nothing").replaced_by("another") is None


def test_what_was_distilled_is_not_replaced_by_anything_else(tiny_folder, tmp_path):
    workspace = Workspace(write_run(tmp_path / "run", tiny_folder("bert"), sweep=None, distilled=a_distillation()))
    for model, distilled in (("mini", False), ("another", True), ("another", False)):
        with pytest.raises(UsageError):
            workspace.replaced_by(model, distilled=distilled)
    assert workspace.replaced_by("mini", distilled=True) is None
