"""Origins of saved models; paths and contents of a workspace, the folder of all results. Imports no torch."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import (
    digest_of,
    is_there,
    is_unfinished,
    local_path,
    read_json,
    real_path,
    remove_leftovers,
    run_lock,
)
from truncate_kit.core.hardware import GRAPH_RUNTIMES
from truncate_kit.core.results import RECORDS_FILE, Result, digest_of_values, read_records

DEFAULT_MINIATURE = "mini-electra-discriminator"
DEFAULT_REFERENCE = "mini-bert"
_MINIATURES = Path(__file__).parents[1] / "models/miniatures"
CONFIG, MODULES = "config.json", "modules.json"
# Configuration fields that affect neither vectors nor training.
_BOOKKEEPING = {
    "_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "export_model_type",
    "finetuning_task", "id2label", "label2id", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "task_specific_params", "tokenizer_class", "transformers_version", "use_cache",
    "dtype", "torch_dtype",  # of the file, not the loaded weights
}  # fmt: skip
_HEADS = ("classifier_", "summary_")

Method = Literal["cut", "finetune", "distill", "contrast", "freeze", "combine", "copy"]
ORIGIN_FILE = "origin.json"
RESULT_FILES: dict[Method, str] = {
    "cut": "lean/cut.json",
    "distill": "lean/distill.json",
    "finetune": "sweep.json",
    "contrast": "contrastive.json",
    "freeze": "frozen-heads/frozen.json",
    "combine": "combination/combination.json",
}
"""Result file of each method, relative to the workspace."""
_WORDS: dict[Method, str] = {
    "cut": "{place}{pieces}, not trained",
    "distill": "{place}, distilled from raw text",
    "finetune": "{place}, fine-tuned on {data}",
    "contrast": "{place}, trained contrastively",
    "freeze": "heads on {layer} of {depth} frozen blocks",
    "combine": "{layers} combined",
    "copy": "unchanged",
}


class Origin(Result):
    """Method, source, data and settings of a saved model."""

    method: Method
    model: str  # source, as it was named
    source_digest: str  # of the source, by `encoder_digest`
    layer: int  # blocks kept
    depth: int  # blocks of the full model
    blocks: tuple[int, ...] | None = None  # kept blocks, if not the first ones
    parameters: int  # of the kept part, pooler excluded
    trained: bool | None  # by this method or earlier, if known
    data: str = ""  # name of the pairs for training or selection
    fingerprint: str = ""  # of these pairs
    seed: int | None = None  # of the split, if drawn per seed
    pieces: tuple[int, int] | None = None  # word pieces kept and total, if cut
    long: int | None = None  # 95th percentile of training text lengths, in tokens
    settings: dict[str, Any]
    versions: dict[str, str]

    @property
    def place(self) -> str:
        """Name the blocks: `layer 3 of 4`, or `blocks 1, 3 of 4`."""
        return f"{place_in_words(self.layer, self.blocks)} of {self.depth}"

    @property
    def words(self) -> str:
        """Describe source, blocks and training in one phrase."""
        pieces = "" if self.pieces is None else ", {:,} of {:,} word pieces".format(*self.pieces)
        layers = layers_in_words(self.settings.get("layers", ())) if self.method == "combine" else ""
        values = {"place": self.place, "layer": self.layer, "depth": self.depth, "data": self.data}
        return f"{self.model}, {_WORDS[self.method].format(**values, pieces=pieces, layers=layers)}"

    def has_budget_of(self, other: "Origin") -> bool:
        """Tell if both were fine-tuned from one model with the same data and settings."""
        ours, theirs = ((one.method, one.model, one.fingerprint, one.settings) for one in (self, other))
        return self.method == "finetune" and ours == theirs


class VocabularyCut(Result):
    """A vocabulary cut to the word pieces of texts."""

    texts: int
    pieces: int  # kept
    full_pieces: int
    model_bytes: int  # all weights in float32
    full_model_bytes: int  # with the full vocabulary
    held_out: int  # every tenth text, to measure coverage
    covered_pieces: float | None  # share of the pieces in held-out texts
    covered_texts: float | None  # share of fully covered texts


def miniature_names() -> tuple[str, ...]:
    """Return the names of the bundled encoders."""
    return tuple(sorted(path.parent.name for path in _MINIATURES.glob("*/config.json")))


def miniature_path(name: str) -> Path | None:
    """Return the folder of the bundled encoder `name`, if any."""
    return _MINIATURES / name if name in miniature_names() else None


def depth_of(model: str) -> int | None:
    """Return the blocks in a local model's config.json, if any."""
    try:
        values = json.loads(((miniature_path(model) or local_path(model)) / "config.json").read_text(encoding="utf-8"))
        return int(next(values[name] for name in ("num_hidden_layers", "n_layers", "n_layer") if name in values))
    except (OSError, ValueError, TypeError, StopIteration):
        return None


def default_reference(name: str) -> str | None:
    """Return the bundled reference model for a bundled encoder, if any."""
    return DEFAULT_REFERENCE if name in miniature_names() and name != DEFAULT_REFERENCE else None


def versions() -> dict[str, str]:
    """Return the versions of packages that models depend on."""
    return {name: version(name) for name in ("truncate-kit", "torch", "transformers")}


def folder_of(graph: Path) -> Path:
    """Return the model's folder of a graph."""
    return graph.parent.parent if graph.parent.name in GRAPH_RUNTIMES else graph.parent


def model_folder(model: str | Path) -> Path | None:
    """Return the folder of a model or graph, if the name is an existing path."""
    place = real_path(local_path(model))
    return place if place.is_dir() else folder_of(place) if place.is_file() else None


def read_origin(model: str | Path) -> Origin | None:
    """Return the recorded origin of a model, if any."""
    folder = model_folder(model)
    return None if folder is None else Origin.read_if_whole(folder / ORIGIN_FILE)


def was_trained(folder: Path) -> bool | None:
    """Tell if a model was fine-tuned, if known.

    Without a record, sentence-transformers models count as fine-tuned, plain transformers do not.
    """
    origin = read_origin(folder)
    if origin is not None:
        return origin.trained
    return (folder / MODULES).is_file() or (False if (folder / CONFIG).is_file() else None)


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration values that affect vectors or training."""
    return {key: value for key, value in config.items() if key not in _BOOKKEEPING and not key.startswith(_HEADS)}


def model_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256, by name, of files that affect graphs (without tokenizer, prompts, casing)."""
    places = [folder]
    if (folder / MODULES).is_file():
        places += [folder / module["path"] for module in read_json(folder / MODULES)]
    files = [folder / CONFIG, folder / MODULES]
    for place in places:
        safe = sorted(place.glob("*.safetensors"))
        files += [place / CONFIG, *(safe or sorted(place.glob("*.bin")))]
    digests = {file: digest_of(file) for file in dict.fromkeys(files) if file.is_file()}
    if folder / CONFIG in digests:
        digests[folder / CONFIG] = digest_of_values(settings_of(read_json(folder / CONFIG)))
    return {str(file.relative_to(folder)): digest for file, digest in digests.items()}


def model_digest(model: str) -> str | None:
    """Return one SHA-256 over `model_digests` of a folder, None for other names."""
    folder = local_path(model)
    return digest_of_values(model_digests(folder)) if folder.is_dir() else None


# Words for places


def listed(numbers: Iterable[int]) -> str:
    """Join numbers by commas."""
    return ", ".join(map(str, numbers))


def blocks_in_words(blocks: Sequence[int], depth: int | None = None) -> str:
    """Write "blocks 1, 4, 6"; given a depth, "blocks 1, 4, 6 of 6"."""
    return f"block{'s' * (len(blocks) > 1)} {listed(blocks)}{'' if depth is None else f' of {depth}'}"


def place_in_words(layer: int, blocks: Sequence[int] | None) -> str:
    """Write "layer 3", or "blocks 1, 4, 6" for chosen blocks."""
    return blocks_in_words(blocks[:layer]) if blocks and layer else f"layer {layer}"


def layers_in_words(layers: Sequence[int]) -> str:
    """Write "layer 1" or "layers 1, 2"."""
    return f"layer{'s' * (len(layers) != 1)} {listed(layers)}"


# Workspaces

_OURS = ("workspace.json", ".lock", "study/.lock")  # a workspace has at least one of these
_DIGEST = re.compile("[0-9a-f]{16,64}(-cuda)?")
_ENDED = ("study.json", "frozen.json", *(RESULT_FILES[name] for name in ("finetune", "contrast", "distill")))
"""Result files of finished runs."""


class Source(Result, kw_only=False):
    """Name of a model or pairs, and options to read it; an empty name is the bundled pairs."""

    name: str = ""
    pooling: str | None = None
    max_length: int | None = None
    columns: tuple[str, ...] | None = None
    scale: tuple[float, ...] | None = None
    skip_bad_rows: bool = False


class Sources(Result, kw_only=False):
    """Model and data of the last commands.

    Attributes:
        queries: Retrieval folder used after the pairs, if any.
        benched: Pairs or retrieval set of the last bench.
    """

    model: Source | None = None
    data: Source = field(default_factory=Source)
    queries: str | None = None
    benched: Source | None = None


def _absolute(source: Source) -> Source:
    if source.name not in ("", "bundled") and is_there(source.name):
        return replace(source, name=str(Path(source.name).resolve()))
    return source


class Workspace:
    """Paths of a workspace; its folder may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = local_path(folder)
        self.lean, self.full = folder / "lean", folder / "full"  # with the same training
        self.combined = folder / "combined"
        self.frozen = folder / "frozen"
        self.profile = folder / "analysis/profile.json"
        self.sweep_file = folder / RESULT_FILES["finetune"]
        self.curve = folder / "curve.png"
        self.attention = folder / "attention.json"  # layer weights for some sentences
        self.attention_figure = self.attention.with_suffix(".png")
        self.combination = folder / "combination"
        self.combination_file = folder / RESULT_FILES["combine"]
        self.frozen_heads = folder / "frozen-heads"  # figures, trials, cached states
        self.study = folder / "study"  # tables, figures and trials
        self.bench = folder / "bench.json"  # benchmarks that measured less: bench-2.json, …
        self.distillation = folder / "distillation"  # texts and vectors
        self.graphs = folder / "graphs"  # of `bench`, by digest of the model
        self._sources = folder / "workspace.json"

    def located(self, name: str) -> str:
        """Resolve a result's model name, which may be relative to a folder above this workspace."""
        if local_path(name).is_absolute() or miniature_path(name) is not None:
            return name
        above = (str(place / name) for place in self.folder.absolute().parents)
        return next((one for one in above if is_there(f"{one}/{CONFIG}") or is_there(f"{one}/{MODULES}")), name)

    def holds(self, model: str | Path) -> bool:
        """Tell if a model lies in the workspace."""
        return Path(model).resolve().is_relative_to(self.folder.resolve())

    def forget_lean(self) -> None:
        """Remove the results of a replaced lean model."""
        for file in (self.sweep_file, self.curve, self.attention, self.attention_figure):
            file.unlink(missing_ok=True)

    def suite(self, name: str) -> Path:
        """Return the file of a suite's scores."""
        return self.folder / f"suite-{name}.json"

    def remembered(self) -> Sources:
        """Read what `remember` recorded."""
        return Sources.read_if_whole(self._sources) or Sources()

    def remember(self, model: Source | None, *data: Source | str | Path | None) -> None:
        """Record model and data for the next command; skip unnamed bundled pairs."""
        changes: dict[str, Any] = {} if model is None else {"model": _absolute(model)}
        for source in data:
            if isinstance(source, str | Path):
                changes["queries"] = str(Path(source).resolve())
            elif source is not None and source != Source():
                changes |= {"data": _absolute(source), "queries": None}
        replace(self.remembered(), **changes).write(self._sources)

    def remember_benched(self, data: Source | None) -> None:
        """Record the benchmark's data for the page."""
        replace(self.remembered(), benched=data and _absolute(data)).write(self._sources)

    def replaced_by(self, model: str, *, distilled: bool = False) -> str | None:
        """Return a warning if the lean model was not made from `model`.

        Raises `UsageError` if a distilled model would be lost, unless `distilled` from the same model.
        """
        made = read_origin(self.lean)
        graphs = [Path(graph).name for graph in _graphs_of(self.lean)]
        lost = f" and its graphs: {', '.join(graphs)}" if graphs else ""
        if made is None or made.method == "copy":
            return f"The lean model replaces the copy in {self.lean}{lost}." if graphs else None
        same = _same(made.model, model)
        if made.method == "distill" and not (same and distilled):
            raise UsageError(
                f"{self.lean} holds the model distilled from {made.model}, which would be replaced.",
                hint=f"Name another folder as `out`, or move {self.lean} away.",
            )
        if same or any(_same(str(place), model) for place in (self.lean, self.full)):  # `output_folder` refuses it
            return None
        return f"{self.lean} holds a model made from {made.model}; one made from {model} replaces it{lost}."


def _same(model: str, other: str) -> bool:
    return model == other or Path(model).resolve() == Path(other).resolve()


# Contents


class Folder(Result):
    """A saved model, or the runs of one model, data and settings."""

    path: str
    file_bytes: int
    origin: str = ""  # in words
    graphs: tuple[str, ...] = ()  # exported
    finished: int = 0
    waiting: int = 0  # the same command continues these
    spare_bytes: int = 0  # needed only to repeat the run


class Contents(Result):
    """Contents of a workspace."""

    folder: str
    models: tuple[Folder, ...]
    runs: tuple[Folder, ...]
    reports: tuple[str, ...]  # results and figures
    kept: dict[str, int]  # bytes by path: graphs, distillation
    file_bytes: int  # total
    spare_bytes: int  # freed by `clean`
    freed_bytes: int = 0


def _graphs_of(folder: Path) -> tuple[str, ...]:
    found = (*folder.glob("onnx/*.onnx"), *folder.glob("openvino/*.xml"))
    return tuple(sorted(path.relative_to(folder).as_posix() for path in found))


def contents(workspace: Workspace, *, freed_bytes: int = 0) -> Contents:
    """List the contents of a workspace; a nested workspace counts as other files."""
    runs = _runs(workspace)
    models = sorted({path.parent for path in workspace.folder.glob("*/config.json")})
    kept = {folder: size for folder in (workspace.graphs, workspace.distillation) if (size := _size(folder))}
    inside = {*models, *runs, *kept}
    return Contents(
        folder=str(workspace.folder),
        models=tuple(
            Folder(
                path=str(folder),
                file_bytes=_size(folder),
                origin="" if (origin := read_origin(folder)) is None else origin.words,
                graphs=_graphs_of(folder),
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
                waiting=_waits(run),
                spare_bytes=sum(map(_size, _spare_of_run(run))),
            )
            for run in runs
        ),
        reports=tuple(
            name
            for path in _below(workspace)
            if path.suffix in (".json", ".md", ".csv", ".png", ".html")
            and inside.isdisjoint(path.parents)
            and ".tmp/" not in (name := str(path.relative_to(workspace.folder)))
        ),
        kept={str(folder): size for folder, size in kept.items()},
        file_bytes=_size(workspace.folder),
        spare_bytes=sum(map(_size, _spare(workspace))),
        freed_bytes=freed_bytes,
    )


def clean(workspace: Workspace) -> Contents:
    """Remove weights of finished runs, graphs of `bench`, and leftovers of killed processes.

    A repeated run gives the same result; unfinished runs keep all files. Raises `FileProblemError` if another process
    works here, `UsageError` for other folders.
    """
    if not workspace.folder.is_dir():
        return contents(workspace)
    if not any((workspace.folder / name).exists() for name in _OURS):
        raise UsageError(f"{workspace.folder} is not a workspace.", hint="Name a folder that a command has written to.")
    earlier = _size(workspace.folder)
    # A study locks only its own folder.
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
    others = {path.parent for path in workspace.folder.glob("*/workspace.json")}
    return sorted(path for path in workspace.folder.rglob("*") if others.isdisjoint((path, *path.parents)))


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _runs(workspace: Workspace) -> list[Path]:
    below = _below(workspace)
    journals = {path.parent for path in below if path.name == RECORDS_FILE}
    folders = filter(_is_own_folder, below)
    return [path for path in folders if path.parent in journals or (_DIGEST.fullmatch(path.name) and _waits(path))]


def _waits(run: Path) -> int:
    return len(list(run.glob("*.checkpoint"))) or int(is_unfinished(run))


def _spare(workspace: Workspace) -> Iterator[Path]:
    graphs = workspace.graphs.iterdir() if _is_own_folder(workspace.graphs) else ()
    yield from (path for path in graphs if _is_own_folder(path) and _DIGEST.fullmatch(path.name))
    learning = any((workspace.folder / "trials").glob("*/blocks*.checkpoint")) or is_unfinished(workspace.distillation)
    if workspace.distillation.is_dir() and (workspace.folder / RESULT_FILES["distill"]).is_file() and not learning:
        yield workspace.distillation
    for run in _runs(workspace):
        yield from _spare_of_run(run)


def _spare_of_run(run: Path) -> Iterator[Path]:
    home = run.parent.parent
    # Adapting a model takes days: keep it until its trials are finished.
    begun = [run.parent, *(home / "trials").glob("*")] if run.parent.name == "adapted" else []
    if any((home / name).exists() for name in _ENDED) and not any(map(_waits, [run, *begun])):
        for path in run.iterdir():
            is_tensor = path.is_dir() or path.suffix == ".safetensors"
            # A repeated run skips finished trials, so it could not restore their states.
            if is_tensor and not path.is_symlink() and not path.name.startswith("states-"):
                yield path


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())
