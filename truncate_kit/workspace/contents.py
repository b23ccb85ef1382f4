"""What a workspace holds, how large it is, and what nobody needs any more."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from truncate_kit.errors import UsageError
from truncate_kit.files import all_below, remove_leftovers
from truncate_kit.results import Result
from truncate_kit.training.journal import RECORDS_FILE, Journal
from truncate_kit.training.model_origins import CONTRAST, DISTILLED, HEADS, SWEEP
from truncate_kit.working_folders import is_unfinished, run_lock
from truncate_kit.workspace.places import Workspace

# One beside the runs says that they ended.
_OURS = ("workspace.json", ".lock", "study/.lock")  # one is in every folder that a command wrote results to
ADAPTED = "adapted"  # the folder of models that were adapted to raw text
_DIGEST = re.compile("[0-9a-f]{16,64}(-cuda)?")
_RESULTS = ("study.json", SWEEP.file, CONTRAST.file, HEADS.file_name, DISTILLED.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(Result):
    """A saved model."""

    path: str
    origin: str  # what it is, in words; nothing where no result says it
    file_bytes: int  # all of it, graphs included
    graphs: tuple[str, ...]  # names of its exported graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder(Result):
    """What the runs of one model, data and settings keep beside their records."""

    path: str
    finished: int  # number of records, such as finished trials
    waiting: int  # number of runs that were stopped in between, whose checkpoints wait for the same command
    file_bytes: int  # weights, tensors and checkpoints
    spare_bytes: int  # of them weights and tensors that only a repetition would read


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFolder(Result):
    """What commands keep beside models and runs, to make it once."""

    path: str
    what: str  # it is, in words
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Result):
    """What a workspace holds."""

    folder: str
    models: tuple[ModelFolder, ...]
    runs: tuple[RunFolder, ...]
    reports: tuple[str, ...]  # names of result files and figures
    file_bytes: int  # all of it
    graph_bytes: int = 0  # graphs that `bench` made and would make again
    vector_bytes: int = 0  # texts and vectors of full models that a finished distillation would compute again
    freed_bytes: int = 0  # removed by this call
    kept: tuple[KeptFolder, ...] = ()

    @property
    def other_bytes(self) -> int:
        """What lies in none of the models, runs and kept folders: results, figures, notes."""
        parts: tuple[ModelFolder | RunFolder | KeptFolder, ...] = (*self.models, *self.runs, *self.kept)
        return self.file_bytes - sum(part.file_bytes for part in parts)

    @property
    def spare_bytes(self) -> int:
        """What `clean` would free."""
        return self.graph_bytes + self.vector_bytes + sum(run.spare_bytes for run in self.runs)


def contents(workspace: Workspace, *, freed_bytes: int = 0) -> Contents:
    """What is in the workspace now, and in those inside it, as `demo` leaves one; of no folder: nothing.

    In those inside it nobody looks for further ones: of hundreds, each in the one before, every file would be counted
    for all pairs of them.
    """
    inside, runs = _inside(workspace), list(_runs(workspace))
    both = [workspace, *inside]
    return Contents(
        folder=str(workspace.folder),
        models=tuple(model for one in both for model in _models(one)),
        runs=tuple(map(_described, runs)),
        reports=(
            *_reports(workspace, {*runs, *(inner.folder for inner in inside)}),
            *(f"{inner.folder.name}/{report}" for inner in inside for report in _reports(inner, {*runs})),
        ),
        file_bytes=_size(workspace.folder),
        graph_bytes=sum(_size(graph) for one in both for graph in _graphs(one)),
        vector_bytes=sum(_size(one.distillation) for one in both if _distilled(one)),
        freed_bytes=freed_bytes,
        kept=tuple(folder for one in both for folder in _kept(one)),
    )


def _kept(workspace: Workspace) -> Iterator[KeptFolder]:
    kinds = {workspace.graphs: "graphs that bench made", workspace.distillation: "what distill learns from"}
    for folder, what in kinds.items():
        if not folder.is_symlink() and (size := _size(folder)):
            yield KeptFolder(path=str(folder), what=what, file_bytes=size)


def _inside(workspace: Workspace) -> list[Workspace]:
    """Workspaces in a workspace, as `demo` leaves one; what a link points to belongs to somebody else."""
    found = (path.parent for path in sorted(workspace.folder.glob("*/workspace.json")))
    return [Workspace(folder) for folder in found if not folder.is_symlink()]


def _models(workspace: Workspace) -> Iterator[ModelFolder]:
    for model in sorted(path.parent for path in workspace.folder.glob("*/config.json")):
        yield ModelFolder(
            path=str(model),
            origin=next((method.models[model.name](result) for method, result in workspace.made(model)), ""),
            file_bytes=_size(model),
            graphs=tuple(sorted(path.name for path in model.glob("*.onnx"))),
        )


def _reports(workspace: Workspace, without: set[Path]) -> Iterator[str]:
    """Names of results, figures and pages that belong to no model and lie in none of these folders."""
    models = {path.parent for path in workspace.folder.glob("*/config.json")}
    inside = {*models, *without, workspace.graphs, workspace.distillation}
    kinds = (".json", ".md", ".csv", ".png", ".html")
    for path in sorted(path for path in all_below(workspace.folder) if path.name.endswith(kinds)):
        half_written = any(re.fullmatch(r"\..*\.tmp", part) for part in path.parts)
        if path.suffix and not half_written and not inside.intersection(path.parents):
            yield str(path.relative_to(workspace.folder))


def clean(workspace: Workspace) -> Contents:
    """Remove weights of finished runs, graphs that `bench` made, and what killed processes left half-written.

    Workspaces inside are cleaned as well. Records stay: a run whose weights are needed again is repeated, with the same
    result. Where a run waits for its command everything is kept. Raises `FileProblemError` where another process works,
    `UsageError` for a folder that no command wrote to.
    """
    if not workspace.folder.is_dir():
        return contents(workspace)
    if not any((workspace.folder / name).exists() for name in _OURS):
        raise UsageError(f"{workspace.folder} is no workspace.", hint="Name a folder that a command has written to.")
    before = _size(workspace.folder)
    inside = _inside(workspace)
    with run_lock(workspace.folder), _study_lock(workspace, inside):
        for inner in inside:
            with run_lock(inner.folder), _study_lock(inner, []):
                _remove_spare(inner)
        _remove_spare(workspace)
    return contents(workspace, freed_bytes=before - _size(workspace.folder))


def _remove_spare(workspace: Workspace) -> None:
    """What `clean` removes of a workspace whose lock is held."""
    _remove_leftovers(workspace.folder, [inner.folder for inner in _inside(workspace)])
    for graph in _graphs(workspace):
        shutil.rmtree(graph, ignore_errors=True)
    with suppress(OSError):  # something else lies in it
        workspace.graphs.rmdir()
    if _distilled(workspace):
        shutil.rmtree(workspace.distillation, ignore_errors=True)
    for run in _runs(workspace):
        with run_lock(run):
            for path in _spare(run):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove_leftovers(folder: Path, others: Sequence[Path]) -> None:
    """What killed processes left half-written in `folder` and all folders in it, but for workspaces of their own."""
    folders = [folder, *(path for path in all_below(folder) if path.is_dir() and not path.is_symlink())]
    for one in folders:
        if not any(one == other or other in one.parents for other in others):
            remove_leftovers(one)


def _study_lock(workspace: Workspace, inside: Sequence[Workspace]) -> AbstractContextManager[None]:
    """A study holds its own folder alone: others work in the workspace meanwhile.

    inside: workspaces that lock themselves when they are cleaned; one may be called so.
    """
    folder = workspace.study
    alone = folder.is_dir() and not folder.is_symlink() and folder not in [inner.folder for inner in inside]
    return run_lock(folder) if alone else nullcontext()


def _graphs(workspace: Workspace) -> list[Path]:
    """The folders that `bench` made, each named by the digest of its model."""
    found = workspace.graphs.iterdir() if workspace.graphs.is_dir() and not workspace.graphs.is_symlink() else ()
    return [path for path in found if path.is_dir() and not path.is_symlink() and _DIGEST.fullmatch(path.name)]


def _distilled(workspace: Workspace) -> bool:
    """Whether a distillation has ended here and none waits for its command."""
    waits = any((workspace.folder / "trials").glob("*/blocks*.checkpoint")) or is_unfinished(workspace.distillation)
    return workspace.distilled() is not None and not waits


def _runs(workspace: Workspace) -> Iterator[Path]:
    """The folders of runs, also of a study and of frozen heads."""
    below = list(all_below(workspace.folder))
    beside = {path.parent for path in below if path.name == RECORDS_FILE}
    # What a link points to belongs to somebody else: it is neither counted nor removed.
    folders = sorted(path for path in below if path.is_dir() and not path.is_symlink())
    for path in folders:  # what is stopped before its first record waits all the same
        if path.parent in beside or (_DIGEST.fullmatch(path.name) and _waits(path)):
            yield path


def _described(run: Path) -> RunFolder:
    records, _ = Journal(run.parent / RECORDS_FILE).read()
    return RunFolder(
        path=str(run),
        finished=sum("name" in record and record.get("store") == run.name for record in records),
        waiting=len(list(run.glob("*.checkpoint"))) or int(is_unfinished(run)),
        file_bytes=_size(run),
        spare_bytes=sum(map(_size, _spare(run))),
    )


def _waits(run: Path) -> bool:
    """Whether it was stopped and waits for its command."""
    return any(run.glob("*.checkpoint")) or is_unfinished(run)


def _spare(run: Path) -> list[Path]:
    """Folders of weights and files of tensors that only a repetition would read; none of runs that go on."""
    home = run.parent.parent
    ended = any((home / name).exists() for name in _RESULTS)
    # An adapted model goes with the trials that begin with it, also anew: to adapt it again may take days.
    begun = [run.parent, *(home / "trials").glob("*")] if run.parent.name == ADAPTED else []
    if not ended or any(_waits(path) for path in (run, *begun) if path.is_dir()):
        return []
    own = (path for path in run.iterdir() if not path.is_symlink())
    tensors = (path for path in own if path.is_dir() or path.suffix == ".safetensors")
    # Of states that CKA was read from no repetition comes: their trials are finished.
    return [path for path in tensors if not path.name.startswith("states-")]


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in all_below(path) if part.is_file())
