"""Places and contents of a workspace, the folder of all results."""

import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import is_unfinished, local_path, model_folder_above, remove_leftovers, run_lock
from truncate_kit.core.origin import RESULT_FILES, miniature_path, read_origin
from truncate_kit.core.results import RECORDS_FILE, Result, read_or_pass_over, read_records

_OURS = ("workspace.json", ".lock", "study/.lock")  # one is in every workspace
_DIGEST = re.compile("[0-9a-f]{16,64}(-cuda)?")
_ENDED = ("study.json", "frozen.json", *(RESULT_FILES[name] for name in ("finetune", "contrast", "distill")))
"""Results of finished runs, beside the runs' folder."""


@dataclass(frozen=True, slots=True)
class ModelSource(Result):
    """A model by name, and options for reading texts."""

    name: str
    pooling: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource(Result):
    """Pairs by name, by default the bundled set, and options for reading them."""

    name: str | None = None
    columns: tuple[str, ...] | None = None
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sources(Result):
    """The last model and pairs.

    Attributes:
        queries: Retrieval folder, if newer than the pairs.
        benched: Pairs or retrieval set of the last bench.
    """

    model: ModelSource | None = None
    data: DataSource = field(default_factory=DataSource)
    queries: str | None = None
    benched: DataSource | None = None


Source = TypeVar("Source", ModelSource, DataSource)
Kind = TypeVar("Kind", bound=Result)


def _absolute(source: Source) -> Source:
    if source.name not in (None, "bundled") and Path(source.name).exists():
        return replace(source, name=str(Path(source.name).resolve()))
    return source


class Workspace:
    """Places in a workspace, which may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = local_path(folder)
        self.lean, self.full = folder / "lean", folder / "full"  # with the same training
        self.combined = folder / "combined"
        self.frozen = folder / "frozen"
        self.profile = folder / "analysis/profile.json"
        self.sweep_file = folder / RESULT_FILES["finetune"]
        self.curve = folder / "curve.png"  # scores by layer
        self.attention = folder / "attention.json"  # layer weights for some sentences
        self.attention_figure = self.attention.with_suffix(".png")
        self.combination = folder / "combination"  # figures too
        self.combination_file = folder / RESULT_FILES["combine"]
        self.frozen_heads = folder / "frozen-heads"  # figures, trials, cached states
        self.study = folder / "study"  # tables, figures and trials
        self.bench = folder / "bench.json"  # shorter ones lie beside it
        self.distillation = folder / "distillation"  # texts and vectors
        self.graphs = folder / "graphs"  # of `bench`, by digest of the model
        self._sources = folder / "workspace.json"

    def located(self, name: str) -> str:
        """Resolve a model name in a result, relative to a folder above this workspace."""
        if local_path(name).is_absolute() or miniature_path(name) is not None:
            return name
        return str(model_folder_above(name, self.folder) or name)

    def holds(self, model: str | Path) -> bool:
        """Tell if a model lies in the workspace."""
        return Path(model).resolve().is_relative_to(self.folder.resolve())

    def forget_lean(self) -> None:
        """Remove the results of a lean model that is replaced."""
        for file in (self.sweep_file, self.curve, self.attention, self.attention_figure):
            file.unlink(missing_ok=True)

    def suite(self, name: str) -> Path:
        """Return the file of a suite's scores."""
        return self.folder / f"suite-{name}.json"

    def remembered(self) -> Sources:
        """Return what the last commands worked on."""
        return read_or_pass_over(Sources.read, self._sources) or Sources()

    def remember(self, model: ModelSource | None, data: DataSource | None, queries: str | None = None) -> None:
        """Note the model, data and retrieval folder for the next command, except unnamed bundled pairs."""
        changes: dict[str, Any] = {} if model is None else {"model": _absolute(model)}
        if data is not None and data != DataSource():
            changes |= {"data": _absolute(data), "queries": None}
        if queries is not None:
            changes["queries"] = str(Path(queries).resolve())
        replace(self.remembered(), **changes).write(self._sources)

    def remember_benched(self, data: DataSource | None) -> None:
        """Note the data of a bench for the page."""
        replace(self.remembered(), benched=data and _absolute(data)).write(self._sources)

    def replaced_by(self, model: str, *, distilled: bool = False) -> str | None:
        """Warn if a new lean model of `model` replaces another's.

        A distilled model cannot be restored: raises `UsageError`, unless `distilled` from the same model.
        """
        made = read_origin(self.lean)
        if made is None or made.method == "copy":
            return None
        same = _same(made.model, model)
        if made.method == "distill" and not (same and distilled):
            raise UsageError(
                f"{self.lean} holds the model distilled from {made.model}, which would be replaced.",
                hint=f"Name another folder as `out`, or move {self.lean} away.",
            )
        if same or any(_same(str(place), model) for place in (self.lean, self.full)):  # refused
            return None
        graphs = sorted(path.name for path in self.lean.glob("*.onnx"))
        lost = f", and its graphs go with it: {', '.join(graphs)}" if graphs else ""
        return f"{self.lean} holds a model made from {made.model}; that of {model} replaces it{lost}."


def _same(model: str, other: str) -> bool:
    return model == other or Path(model).resolve() == Path(other).resolve()


def read_result(kind: type[Kind], path: Path) -> Kind | None:
    """Return the result in a file, None if missing or damaged."""
    return read_or_pass_over(kind.read, path)


# Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder(Result):
    """A saved model, or the runs of one model, data and settings."""

    path: str
    file_bytes: int
    origin: str = ""  # in words
    graphs: tuple[str, ...] = ()  # exported
    finished: int = 0  # such as trials
    waiting: int = 0  # continued by the same command
    spare_bytes: int = 0  # read only by a repetition


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Result):
    """Contents of a workspace."""

    folder: str
    models: tuple[Folder, ...]
    runs: tuple[Folder, ...]
    reports: tuple[str, ...]  # results and figures
    kept: dict[str, int]  # bytes by path, of bench and distill
    file_bytes: int  # total
    spare_bytes: int  # freed by `clean`
    freed_bytes: int = 0

    @property
    def other_bytes(self) -> int:
        """Return the bytes of results, figures and notes."""
        listed = sum(folder.file_bytes for folder in (*self.models, *self.runs))
        return self.file_bytes - listed - sum(self.kept.values())


def contents(workspace: Workspace, *, freed_bytes: int = 0) -> Contents:
    """List the contents; a nested workspace counts as other files."""
    below, runs = _below(workspace), _runs(workspace)
    models = sorted({path.parent for path in workspace.folder.glob("*/config.json")})
    kept = {folder: size for folder in (workspace.graphs, workspace.distillation) if (size := _size(folder))}
    inside = {*models, *runs, *kept}
    reports = [
        path.relative_to(workspace.folder)
        for path in below
        if path.suffix in (".json", ".md", ".csv", ".png", ".html") and inside.isdisjoint(path.parents)
    ]
    return Contents(
        folder=str(workspace.folder),
        models=tuple(
            Folder(
                path=str(folder),
                file_bytes=_size(folder),
                origin="" if (origin := read_origin(folder)) is None else origin.words,
                graphs=tuple(sorted(path.name for path in folder.glob("*.onnx"))),
            )
            for folder in models
        ),
        runs=tuple(
            Folder(
                path=str(run),
                file_bytes=_size(run),
                finished=sum(
                    "name" in record and record.get("store") == run.name
                    for record in read_records(run.parent / RECORDS_FILE)[0]
                ),
                waiting=len(list(run.glob("*.checkpoint"))) or int(is_unfinished(run)),
                spare_bytes=sum(map(_size, _spare_of_run(run))),
            )
            for run in runs
        ),
        reports=tuple(str(path) for path in reports if not any(part.endswith(".tmp") for part in path.parts)),
        kept={str(folder): size for folder, size in kept.items()},
        file_bytes=_size(workspace.folder),
        spare_bytes=sum(map(_size, _spare(workspace))),
        freed_bytes=freed_bytes,
    )


def clean(workspace: Workspace) -> Contents:
    """Remove weights of finished runs, graphs of `bench`, and leftovers of killed processes.

    A repeated run gives the same result; waiting runs keep everything. Raises `FileProblemError` if another process
    works here, `UsageError` if the folder is no workspace.
    """
    if not workspace.folder.is_dir():
        return contents(workspace)
    if not any((workspace.folder / name).exists() for name in _OURS):
        raise UsageError(f"{workspace.folder} is no workspace.", hint="Name a folder that a command has written to.")
    earlier = _size(workspace.folder)
    # A study locks its folder alone.
    study = run_lock(workspace.study) if _is_own_folder(workspace.study) else nullcontext()
    with run_lock(workspace.folder), study:
        for folder in [workspace.folder, *filter(_is_own_folder, _below(workspace))]:
            remove_leftovers(folder)
        for path in list(_spare(workspace)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        with suppress(OSError):  # not empty
            workspace.graphs.rmdir()
    return contents(workspace, freed_bytes=earlier - _size(workspace.folder))


def _below(workspace: Workspace) -> list[Path]:
    """Return all files and folders except nested workspaces, sorted."""
    others = {path.parent for path in workspace.folder.glob("*/workspace.json")}
    return sorted(path for path in workspace.folder.rglob("*") if others.isdisjoint((path, *path.parents)))


def _is_own_folder(path: Path) -> bool:
    """Tell if a path is a folder and no link."""
    return path.is_dir() and not path.is_symlink()


def _runs(workspace: Workspace) -> list[Path]:
    """Return the folders of all runs."""
    below = _below(workspace)
    beside = {path.parent for path in below if path.name == RECORDS_FILE}
    folders = filter(_is_own_folder, below)
    return [path for path in folders if path.parent in beside or (_DIGEST.fullmatch(path.name) and _waits(path))]


def _waits(run: Path) -> bool:
    return any(run.glob("*.checkpoint")) or is_unfinished(run)


def _spare(workspace: Workspace) -> Iterator[Path]:
    if _is_own_folder(workspace.graphs):
        yield from (path for path in workspace.graphs.iterdir()
                    if _is_own_folder(path) and _DIGEST.fullmatch(path.name))  # fmt: skip
    learning = any((workspace.folder / "trials").glob("*/blocks*.checkpoint")) or is_unfinished(workspace.distillation)
    if workspace.distillation.is_dir() and (workspace.folder / RESULT_FILES["distill"]).is_file() and not learning:
        yield workspace.distillation
    for run in _runs(workspace):
        yield from _spare_of_run(run)


def _spare_of_run(run: Path) -> Iterator[Path]:
    home = run.parent.parent
    # An adapted model takes days: keep it while a trial from it waits.
    begun = [run.parent, *(home / "trials").glob("*")] if run.parent.name == "adapted" else []
    if any((home / name).exists() for name in _ENDED) and not any(map(_waits, [run, *begun])):
        for path in run.iterdir():
            is_tensor = path.is_dir() or path.suffix == ".safetensors"
            # No repetition reads these states: their trials are finished.
            if is_tensor and not path.is_symlink() and not path.name.startswith("states-"):
                yield path


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())
