"""The folder in which each command finds what the one before it left: places, contents, and what was worked on."""

import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import is_unfinished, local_path, model_folder_above, remove_leftovers, run_lock
from truncate_kit.core.naming import miniature_path
from truncate_kit.core.origin import RESULT_FILES, read_origin
from truncate_kit.core.results import RECORDS_FILE, Journal, Result, read_or_pass_over

ADAPTED = "adapted"  # the folder of models that were adapted to raw text
_BUNDLED = "bundled"  # `truncate_kit.data.BUNDLED`, whose import would take a second
_OURS = ("workspace.json", ".lock", "study/.lock")  # one is in every folder that a command wrote results to
_DIGEST = re.compile("[0-9a-f]{16,64}(-cuda)?")
_ENDED = ("study.json", "frozen.json", *(RESULT_FILES[name] for name in ("finetune", "contrast", "distill")))
"""One of these beside the runs says that they ended."""


@dataclass(frozen=True, slots=True)
class ModelSource(Result):
    """A model by name (folder, hub name, miniature), and how its texts are read."""

    name: str
    pooling: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource(Result):
    """Pairs by name, None for the bundled set, and how they are read."""

    name: str | None = None
    columns: tuple[str, ...] | None = None
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class LearnedSource(Result):
    """The model and the pairs of a sweep, and the fingerprint by which its result knows these."""

    fingerprint: str
    model: ModelSource
    data: DataSource


@dataclass(frozen=True, slots=True)
class Sources(Result):
    """The last model and the last pairs; None where there were none.

    queries: The folder of a retrieval set, where that was taken later than the pairs.
    learned: What the last sweep took, whatever other commands took since.
    benched: The pairs or the retrieval set that the last bench was given; None where it was given none.
    """

    model: ModelSource | None = None
    data: DataSource = field(default_factory=DataSource)
    queries: str | None = None
    learned: LearnedSource | None = None
    benched: DataSource | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote; nothing where there was none or it is damaged."""
        return read_or_pass_over(super(Sources, cls).read, path) or cls()

    def write(self, path: Path) -> None:
        """Write a JSON file; paths are made absolute."""
        learned = self.learned
        if learned is not None:
            learned = replace(learned, model=_absolute(learned.model), data=_absolute(learned.data))
        found = Sources(
            model=self.model and _absolute(self.model),
            data=_absolute(self.data),
            queries=self.queries and str(Path(self.queries).resolve()),
            learned=learned,
            benched=self.benched and _absolute(self.benched),
        )
        super(Sources, found).write(path)


Source = TypeVar("Source", ModelSource, DataSource)
Kind = TypeVar("Kind", bound=Result)


def _absolute(source: Source) -> Source:
    """Return the source with a path that exists made absolute; any other name stays as it is."""
    if source.name not in (None, _BUNDLED) and Path(source.name).exists():
        return replace(source, name=str(Path(source.name).resolve()))
    return source


class Workspace:
    """A workspace, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = local_path(folder)
        self.lean, self.full = folder / "lean", folder / "full"  # the truncated model, and the full one tuned likewise
        self.combined = folder / "combined"  # the model whose vectors are made of a combination of layers
        self.frozen = folder / "frozen"  # the frozen model with heads
        self.profile = folder / "analysis/profile.json"
        self.sweep_file = folder / RESULT_FILES["finetune"]
        self.curve = folder / "curve.png"  # scores of the sweep by layer
        self.attention = folder / "attention.json"  # how much each layer counts in the vectors of some sentences
        self.attention_figure = self.attention.with_suffix(".png")
        self.combination = folder / "combination"  # what the search of combinations found, and its figures
        self.combination_file = folder / RESULT_FILES["combine"]
        self.frozen_heads = folder / "frozen-heads"  # what training heads found: figures, trials, cached states
        self.study = folder / "study"  # tables, figures and trials
        self.bench = folder / "bench.json"  # shorter measurements stand beside it
        self.distillation = folder / "distillation"  # texts and vectors that `distill` learns from
        self.graphs = folder / "graphs"  # that `bench` made, each under the digest of its model
        self._sources = folder / "workspace.json"

    def located(self, name: str) -> str:
        """Return the name of a model as a result here has it, from wherever it is asked for.

        Results name models as they were typed, mostly in one of the folders above this workspace: there they are looked
        for first, whatever has that name where the command is typed now.
        """
        if local_path(name).is_absolute() or miniature_path(name) is not None:
            return name
        found = model_folder_above(name, self.folder)
        return name if found is None else str(found)

    def holds(self, model: str | Path) -> bool:
        """Return whether a model of this name lies in the workspace."""
        return Path(model).resolve().is_relative_to(self.folder.resolve())

    def forget_lean(self) -> None:
        """Remove what describes a lean model whose place another one takes."""
        for file in (self.sweep_file, self.curve, self.attention, self.attention_figure):
            file.unlink(missing_ok=True)

    def suite(self, name: str) -> Path:
        """Return where the scores of a suite are."""
        return self.folder / f"suite-{name}.json"

    def remembered(self) -> Sources:
        """Return what the last commands worked on."""
        return Sources.read(self._sources)

    def remember(
        self,
        model: ModelSource | None,
        data: DataSource | None,
        queries: str | None = None,
        learned: LearnedSource | None = None,
    ) -> None:
        """Note for the next command what this one worked on; None leaves what was noted before.

        Args:
            model: What this command worked on.
            data: Pairs; the bundled ones, which nobody named, leave what was noted before.
            queries: A folder of them; pairs that are noted later take its place.
            learned: What a sweep took.
        """
        last = self.remembered()
        data = None if data == DataSource() else data
        found = replace(
            last,
            model=model or last.model,
            data=data or last.data,
            queries=queries or (last.queries if data is None else None),
            learned=learned or last.learned,
        )
        found.write(self._sources)

    def remember_benched(self, data: DataSource | None) -> None:
        """Note for the page what a bench was given; other commands take what they took before."""
        replace(self.remembered(), benched=data).write(self._sources)

    def replaced_by(self, model: str, *, distilled: bool = False) -> str | None:
        """Return a sentence on what making the lean model of `model` replaces; None where `lean` was made of it too.

        Finished trials stay, so the command that made a fine-tuned model brings it back. What a distillation learned
        lies in its model alone: raises `UsageError` where that would be replaced by anything but a distillation of
        this model.

        Args:
            model: Whose lean one is made.
            distilled: Whether the lean model is to be distilled.
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
        if same or any(_same(str(place), model) for place in (self.lean, self.full)):  # which is refused
            return None
        graphs = sorted(path.name for path in self.lean.glob("*.onnx"))
        lost = f", and its graphs go with it: {', '.join(graphs)}" if graphs else ""
        return f"{self.lean} holds a model made from {made.model}; that of {model} replaces it{lost}."


def _same(model: str, other: str) -> bool:
    """Return whether two names, of a hub or of folders, are those of one model."""
    return model == other or Path(model).resolve() == Path(other).resolve()


def read_result(kind: type[Kind], path: Path) -> Kind | None:
    """Return the result in a file, None where there is none or it is damaged."""
    return read_or_pass_over(kind.read, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(Result):
    """A saved model."""

    path: str
    origin: str  # what it is, in words; nothing where its folder does not say it
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
    kept: dict[str, int] = field(default_factory=dict)  # bytes of folders that bench and distill fill, by their paths

    @property
    def other_bytes(self) -> int:
        """What lies in none of the models, runs and kept folders: results, figures, notes."""
        models, runs = (model.file_bytes for model in self.models), (run.file_bytes for run in self.runs)
        return self.file_bytes - sum(models) - sum(runs) - sum(self.kept.values())

    @property
    def spare_bytes(self) -> int:
        """What `clean` would free."""
        return self.graph_bytes + self.vector_bytes + sum(run.spare_bytes for run in self.runs)


def contents(workspace: Workspace, *, freed_bytes: int = 0) -> Contents:
    """List what is in the workspace now; a workspace inside it counts as other files."""
    below, runs = _below(workspace), _runs(workspace)
    models = {path.parent for path in workspace.folder.glob("*/config.json")}
    kept = (workspace.graphs, workspace.distillation)
    inside = {*models, *runs, *kept}
    reports = (path for path in below if path.suffix in (".json", ".md", ".csv", ".png", ".html"))
    return Contents(
        folder=str(workspace.folder),
        models=tuple(
            ModelFolder(
                path=str(folder),
                origin="" if (origin := read_origin(folder)) is None else origin.words,
                file_bytes=_size(folder),
                graphs=tuple(sorted(path.name for path in folder.glob("*.onnx"))),
            )
            for folder in sorted(models)
        ),
        runs=tuple(map(_described_run, runs)),
        reports=tuple(
            str(path.relative_to(workspace.folder))
            for path in reports
            if not inside.intersection(path.parents)
            and not any(re.fullmatch(r"\..*\.tmp", part) for part in path.parts)  # half-written
        ),
        file_bytes=_size(workspace.folder),
        graph_bytes=sum(map(_size, _graphs(workspace))),
        vector_bytes=_size(workspace.distillation) if _is_distilled(workspace) else 0,
        freed_bytes=freed_bytes,
        kept={str(folder): size for folder in kept if not folder.is_symlink() and (size := _size(folder))},
    )


def _below(workspace: Workspace) -> list[Path]:
    """Return all files and folders but those of workspaces inside, sorted."""
    others = {path.parent for path in workspace.folder.glob("*/workspace.json")}
    found = workspace.folder.rglob("*")
    return sorted(path for path in found if not others or others.isdisjoint((path, *path.parents)))


def clean(workspace: Workspace) -> Contents:
    """Remove weights of finished runs, graphs that `bench` made, and what killed processes left half-written.

    Records stay: a run whose weights are needed again is repeated, with the same result. Where a run waits for its
    command everything is kept. Raises `FileProblemError` where another process works, `UsageError` for a folder that no
    command wrote to.
    """
    if not workspace.folder.is_dir():
        return contents(workspace)
    if not any((workspace.folder / name).exists() for name in _OURS):
        raise UsageError(f"{workspace.folder} is no workspace.", hint="Name a folder that a command has written to.")
    before = _size(workspace.folder)
    # A study holds its folder alone: others work in the workspace meanwhile.
    study = run_lock(workspace.study) if _is_own_folder(workspace.study) else nullcontext()
    with run_lock(workspace.folder), study:
        for folder in [workspace.folder, *(path for path in _below(workspace) if _is_own_folder(path))]:
            remove_leftovers(folder)
        for graph in _graphs(workspace):
            shutil.rmtree(graph, ignore_errors=True)
        with suppress(OSError):  # something else lies in it
            workspace.graphs.rmdir()
        if _is_distilled(workspace):
            shutil.rmtree(workspace.distillation, ignore_errors=True)
        for run in _runs(workspace):
            with run_lock(run):
                for path in _spare(run):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return contents(workspace, freed_bytes=before - _size(workspace.folder))


def _is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder; what a link points to belongs to somebody else."""
    return path.is_dir() and not path.is_symlink()


def _graphs(workspace: Workspace) -> list[Path]:
    """Return the folders that `bench` made, each named by the digest of its model."""
    found = workspace.graphs.iterdir() if _is_own_folder(workspace.graphs) else ()
    return [path for path in found if _is_own_folder(path) and _DIGEST.fullmatch(path.name)]


def _is_distilled(workspace: Workspace) -> bool:
    """Return whether a distillation has ended here and none waits for its command."""
    waits = any((workspace.folder / "trials").glob("*/blocks*.checkpoint")) or is_unfinished(workspace.distillation)
    return (workspace.folder / RESULT_FILES["distill"]).is_file() and not waits


def _runs(workspace: Workspace) -> list[Path]:
    """Return the folders of runs, also of a study and of frozen heads."""
    below = _below(workspace)
    beside = {path.parent for path in below if path.name == RECORDS_FILE}
    folders = filter(_is_own_folder, below)
    # What is stopped before its first record waits all the same.
    return [path for path in folders if path.parent in beside or (_DIGEST.fullmatch(path.name) and _waits(path))]


def _described_run(run: Path) -> RunFolder:

    records, _ = Journal(run.parent / RECORDS_FILE).read()
    return RunFolder(
        path=str(run),
        finished=sum("name" in record and record.get("store") == run.name for record in records),
        waiting=len(list(run.glob("*.checkpoint"))) or int(is_unfinished(run)),
        file_bytes=_size(run),
        spare_bytes=sum(map(_size, _spare(run))),
    )


def _waits(run: Path) -> bool:
    """Return whether a run was stopped and waits for its command."""
    return any(run.glob("*.checkpoint")) or is_unfinished(run)


def _spare(run: Path) -> Iterator[Path]:
    """Yield folders of weights and files of tensors that only a repetition would read; none of runs that go on."""
    home = run.parent.parent
    # An adapted model goes with the trials that begin with it, also anew: to adapt it again may take days.
    begun = [run.parent, *(home / "trials").glob("*")] if run.parent.name == ADAPTED else []
    ended = any((home / name).exists() for name in _ENDED)
    if ended and not any(_waits(path) for path in (run, *begun) if path.is_dir()):
        for path in list(run.iterdir()):
            tensors = path.is_dir() or path.suffix == ".safetensors"
            # Of states that CKA was read from no repetition comes: their trials are finished.
            if tensors and not path.is_symlink() and not path.name.startswith("states-"):
                yield path


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
