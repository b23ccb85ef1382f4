"""Commands without training: cut, export, encode."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.core.errors import DataError, UsageError, lasting
from truncate_kit.core.files import local_path
from truncate_kit.core.hardware import Runtime, check_target
from truncate_kit.core.vectors import VectorFormat, VectorPrecision
from truncate_kit.core.workspace import RESULT_FILES, Source, read_origin

from . import options
from .console import note, progress_bar, show
from .options import (
    Machine,
    Output,
    Pairs,
    Push,
    Workspace,
    argument,
    command,
    data_option,
    layers_option,
    machine_option,
    refuse,
    results_option,
)

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.export.record import ExportReport, ExportSettings
    from truncate_kit.training.cutting import CutResult


@command(
    "truncate-kit cut MODEL --layer 6",
    "truncate-kit cut MODEL --blocks 1..3,6 --vocabulary-from texts.txt",
    result="training.cutting:CutResult",
)
def cut(
    model: options.Model = None,
    *,
    layer: int | None = layers_option(None, "The last layer to keep; 0 keeps only the embeddings."),
    blocks: options.Blocks = None,
    vocabulary_from: options.VocabularyFrom = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    workspace: Output,
    push: Push,
) -> None:
    """Cut a model at a layer, to some blocks, or in its vocabulary, without training; save it with a model card."""
    kept = options.kept(layer, blocks)
    if kept is None and vocabulary_from is None:
        raise UsageError(
            "No layer, blocks or vocabulary is given.",
            hint="Give --layer 6, --blocks 1,4,6, or --vocabulary-from FILE.",
        )
    result = _save_cut(workspace.starting_model(model, pooling, max_length), kept, vocabulary_from, workspace)
    show(result, workspace.lean)
    note(push.upload(workspace.lean))


def _save_cut(
    source: Source, kept: int | tuple[int, ...] | None, texts: Path | None, workspace: Workspace
) -> "CutResult":
    from truncate_kit.data.tables import read_texts
    from truncate_kit.training.cutting import cut as run

    lean = workspace.lean
    origin, is_source = read_origin(lean), Path(source.name).resolve() == lean.resolve()
    _check_free(lean, f"a cut of {source.name}", origin is not None and origin.method == "cut" and not is_source)
    raw = None if texts is None else read_texts(texts)
    result = run(workspace.load(source), kept, out=workspace.folder, texts=raw)
    workspace.remember(source, None)
    return result


@command(
    "truncate-kit export",
    "truncate-kit export --precision int8 --data pairs.csv",
    result="export.record:ExportReport",
)
def export(
    model: options.Finished = None,
    *,
    onnx: bool = results_option(True, "Write an ONNX graph; the only format.", "--onnx", hidden=True),
    pairs: Pairs,
    texts: options.SampleTexts = None,
    layer: int | None = layers_option(None, "Cut the model at this layer first, without training."),
    blocks: options.Blocks = None,
    vocabulary_from: options.VocabularyFrom = None,
    values: "Annotated[dict[str, Any], ExportSettings]",
    threads: options.Threads = None,
    workspace: Output,
    push: Push,
) -> None:
    """Export the model as one graph, for ONNX Runtime or OpenVINO, checked against torch, with its tokenizer."""
    from truncate_kit.export.record import ExportSettings

    kept = options.kept(layer, blocks)
    precision, target = check_target(
        values["precision"], values.get("target"), values["runtime"]
    )  # fail before loading
    settings = ExportSettings(**values | {"precision": precision, "target": target})
    if precision != "int8":
        refuse("--precision int8", budget=values.get("budget"))
    options.use_threads(threads)
    report, place, _ = _export(workspace, model, settings, pairs, texts, kept, vocabulary_from)
    show(report, place / report.file)
    note(push.upload(place))


def _export(
    workspace: Workspace,
    model: str | None,
    settings: "ExportSettings",
    pairs: Pairs,
    texts: Path | None,
    kept: int | tuple[int, ...] | None = None,
    vocabulary_from: Path | None = None,
) -> "tuple[ExportReport, Path, PairSplits]":
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.tables import read_texts
    from truncate_kit.export.exporting import export_onnx
    from truncate_kit.report.view import data_sentences, view_of

    cuts = kept is not None or vocabulary_from is not None
    # Read the data before a cut replaces the lean model.
    own_model = model is None or Path(model).resolve() == workspace.lean.resolve()
    splits: PairSplits | None = None
    data_source, raw = None, ("", list[str](), "")  # name, texts and note
    if texts is not None:
        if pairs != Pairs():
            raise UsageError("`texts` and `data` are both given.", hint="Leave out `texts` or `data`.")
        from truncate_kit.data.pairs import BUNDLED_TEXTS
        from truncate_kit.methods.distill.labels import NOTE

        raw = "bundled sentences" if texts == BUNDLED_TEXTS else texts.name, read_texts(texts), NOTE
    elif own_model and not cuts and pairs == Pairs() and (workspace.folder / RESULT_FILES["distill"]).is_file():
        from truncate_kit.methods.distill.labels import own_pairs_of

        splits = own_pairs_of(workspace)
        note(*(data_sentences(splits) if splits is not None else ()))
    if texts is None and splits is None:
        data, data_source = workspace.read(pairs)
        if isinstance(data, RetrievalSet):
            from truncate_kit.methods.distill.labels import SEARCH_NOTE

            raw = data.name, [*data.queries, *data.documents], SEARCH_NOTE.format(name=data.name)
            data_source = None
        else:
            splits = data
    if splits is None:
        from truncate_kit.methods.distill.labels import distinct_texts, text_pairs_of

        distinct_texts(*raw[:2])
    elif settings.precision == "int8":
        _check_searchable(splits)
    if cuts:
        cut = _save_cut(workspace.starting_model(model, None, None), kept, vocabulary_from, workspace)
        note(*view_of(cut).sentences)
        model = None
    source = workspace.finished_model(model)
    ours = _inside(workspace, source.name)
    with workspace.held():
        if not ours:
            _check_free(workspace.lean, f"exporting {source.name}", _is_copy(workspace.lean, source.name))
        place = Path(source.name) if ours else workspace.lean
        encoder = workspace.load(source)
        if splits is None:
            splits = text_pairs_of(encoder, *raw)
            note(*data_sentences(splits))
        splits = workspace.unseen(splits, source.name)
        if settings.precision == "int8" and None in (splits.dev, splits.test):
            splits = workspace.divided(splits)
        dev = splits.dev if settings.precision == "int8" else None
        work: dict[str, Any] = {"pairs": splits.evaluation, "search_pairs": dev, "progress": progress_bar()}
        report = export_onnx(encoder, place, settings, **work)
    workspace.remember(None if Path(source.name).resolve() == place.resolve() else source, data_source)
    return report, place, splits


@command(
    "truncate-kit compress MODEL",
    "truncate-kit compress MODEL --texts sentences.txt",
    result="bench.result:BenchReport",
)
def compress(
    model: options.Finished = None,
    *,
    pairs: Pairs,
    texts: options.SampleTexts = None,
    threads: options.Threads = None,
    workspace: Output,
) -> str | None:
    """Export the model in int8 without training, and measure the gain in speed and size, in about a minute."""
    from truncate_kit.bench.result import BASE, QUICK
    from truncate_kit.bench.run import bench
    from truncate_kit.data.pairs import BUNDLED_TEXTS
    from truncate_kit.export.record import ExportSettings
    from truncate_kit.report.card import add_result

    options.use_threads(threads)
    own = texts
    if texts is None and pairs == Pairs():
        texts = BUNDLED_TEXTS
        note("The graph is checked on bundled English sentences; better give your own by --texts or --data.")
    settings = ExportSettings(precision="int8")
    report, place, splits = _export(workspace, model, settings, pairs, texts)
    backends = BASE, "onnx-int8"
    quick = replace(QUICK, backends=backends, threads=threads, batch_sizes=(1,), lengths=(16,))
    tested = splits.evaluation
    with workspace.held():
        result = bench(place, settings=quick, pairs=tested, texts=tested.texts(), progress=progress_bar())
        path = workspace.write(result, workspace.bench)
    add_result(place, replace(result, exported={}))
    show(result, place / report.file, path)
    return _half(report.layers, result.rate("lean", BASE), own)


def _half(depth: int, rate: float | None, texts: Path | None) -> str | None:
    """Return the step that halves the blocks, and note its gain and duration; rate: texts per second."""
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.distill.settings import Budget, DistillSettings, expected_loss, expected_seconds

    blocks = depth // 2
    if not blocks or not rate:
        return None
    number = 8000 if texts is None else len(set(read_texts(texts)))
    parts = expected_seconds(Budget(blocks=str(blocks)), DistillSettings(), depth, number, 1 / rate / depth)
    note(
        f"With {blocks} of {depth} blocks: about {depth / blocks:.1f} times as fast as with all, after about "
        f"{lasting(sum(parts.values()))} on {number:,} texts.",
        f"As measured on all-MiniLM-L6-v2, expect to lose {expected_loss(blocks / depth, number):.1f} points.",
    )
    named = "sentences.txt" if texts is None else shlex.quote(str(texts))
    return f"distill MODEL --blocks {blocks} --texts {named}{{option}}"


def _check_searchable(splits: "PairSplits") -> None:
    if None in (splits.dev, splits.test) and splits.train is None and not splits.one_file:
        raise UsageError(
            f"int8 needs dev pairs to choose its layers, and test pairs to report scores; {splits.name} has only "
            f"{' and '.join(name for name, _ in splits.items())}.",
            hint="Give a folder with both, or one file to split, or use --precision fp32.",
        )


def _check_free(lean: Path, replacement: str, replaceable: bool) -> None:
    if lean.is_dir() and not replaceable:
        raise UsageError(
            f"{lean} holds a model; {replacement} would replace it.",
            hint=f"Name another folder with --workspace. To use the model in {lean}, also give {lean} as MODEL.",
        )


def _is_copy(lean: Path, named: str) -> bool:
    from truncate_kit.models.loading import load_encoder
    from truncate_kit.models.store import encoder_digest

    origin = read_origin(lean)
    if origin is None or origin.method != "copy" or Path(origin.model).resolve() != Path(named).resolve():
        return False
    return encoder_digest(load_encoder(lean)) == origin.source_digest


def _inside(workspace: Workspace, named: str) -> bool:
    models = (workspace.lean, workspace.full, workspace.combined, workspace.frozen)
    return any(model.is_dir() and Path(named).resolve() == model.resolve() for model in models)


@command(
    "truncate-kit encode texts.txt --out vectors.npy",
    "truncate-kit encode - --model mini-bert --out two.npy < texts.txt",
    result="export.encode:EncodedFile",
)
def encode(
    file: Path = argument(
        ..., "FILE", "Texts: .txt, .csv, .tsv, .json(l), .parquet, also .gz; - reads standard input."
    ),
    *,
    model: str | None = data_option(None, "Folder, hub name, miniature or graph file; by default WORKSPACE/lean."),
    column: str | None = data_option(None, "Column of the texts, if not recognized by name."),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    runtime: Runtime | None = machine_option(None, "By default onnx if there is a suitable graph."),
    graph: options.Graph = None,
    machine: Machine,
    out: Path = results_option(Path("vectors.npy"), "Output file; row n is the vector of text n."),
    precision: VectorPrecision = results_option("float32", "Precision of the vectors in the file."),
    dimensions: options.Dimensions = None,
    normalize: bool | None = results_option(
        None,
        "Scale vectors to length 1; by default as the model does.",
        "--normalize/--no-normalize",
        show_default=False,
    ),
    workspace: Workspace,
) -> None:
    """Encode the texts of a file of any size into a .npy file; after an interruption, the same command continues."""
    form = VectorFormat(precision=precision, dimensions=dimensions)
    from truncate_kit.export.encode import encode_file
    from truncate_kit.export.record import suited_precision
    from truncate_kit.export.runtime import gives_unit_vectors

    named = workspace.finished_model(model, pooling, max_length)
    place, inside = local_path(named.name), bool(named.pooling or named.max_length)
    device = "cuda" if machine.gpus_per_worker or machine.on_cuda else "cpu"  # of the encoding processes
    suited = None if runtime == "torch" or inside else suited_precision(place, device, runtime or "onnx")
    encoder = workspace.load_text_encoder(named, runtime, graph or suited, machine, device)
    form = replace(form, normalize=gives_unit_vectors(encoder) if normalize is None else normalize)
    with machine.open() as engine, _readable(file) as source:
        result = encode_file(encoder, source, out, column=column, form=form, engine=engine, progress=progress_bar())
    if result.num_cut and encoder.reader is not None:
        truncated = f"{result.num_cut:,} of {result.shape[0] - result.resumed_at:,} texts"
        note(f"Truncated: {truncated} were longer than the limit of {encoder.reader.max_length:,} tokens.")
    show(replace(result, source=str(file)))


@contextmanager
def _readable(file: Path) -> Iterator[Path]:
    """Yield the file, or a copy of standard input, which is read twice."""
    if str(file) != "-":
        yield file
        return
    with NamedTemporaryFile(suffix=".txt") as copy:
        if sys.stdin is not None:  # unless the caller closed it
            copyfileobj(sys.stdin.buffer, copy)
        if not copy.tell():
            raise DataError("Standard input is empty.", hint="Send texts to the command, one per line.")
        copy.flush()
        try:
            yield Path(copy.name)
        except DataError as error:
            raise DataError(str(error).replace(copy.name, "Standard input"), hint=error.hint) from error
