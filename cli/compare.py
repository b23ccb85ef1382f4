"""`truncate-kit compare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .freeze import CODES
from .options import data_option, results_option, use_threads
from .output import note, print_json, progress_bar, say, table

if TYPE_CHECKING:
    from truncate_kit.evaluation.retrieval import RetrievalComparison


def compare(
    full: Annotated[
        str, typer.Argument(metavar="FULL", help="The model whose index there is: folder, hub name or .onnx file.")
    ],
    lean: Annotated[str, typer.Argument(metavar="LEAN", help="The lean model, best one that distill made of it.")],
    data: Annotated[
        str,
        data_option("Folder of corpus.jsonl, queries.jsonl and qrels/test.tsv (BEIR's layout)."),
    ],
    split: Annotated[
        str | None, data_option("The name of a file in qrels; by default test, else dev, else the only one.")
    ] = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    threads: options.Threads = None,
    top: Annotated[int, results_option("Number of documents that count for each query.", min=1)] = 10,
    as_json: options.Json = False,
) -> None:
    """Search with a full model, a lean one, and lean queries on the full model's index, in float32 and int8."""
    from truncate_kit.data import read_retrieval
    from truncate_kit.evaluation.retrieval import compare as run
    from truncate_kit.evaluation.retrieval import note_of_searched
    from truncate_kit.export.runtime import load_text_encoder
    from truncate_kit.seen import seen_among

    use_threads(threads)
    found = read_retrieval(data, split=split)
    note(*dict.fromkeys(seen_among(found, name) for name in (full, lean)), quiet=as_json)
    first, second = (
        load_text_encoder(name, max_length=max_length, threads=threads, device=device) for name in (full, lean)
    )
    note(*note_of_searched(lean, second, found), quiet=as_json)
    with progress_bar(quiet=as_json) as progress:
        report = run(first, second, found, names=(full, lean), top=top, progress=progress)
    if as_json:
        print_json(report)
        return
    show(report)
    if any(encoder.heads is not None for encoder in (first, second)):
        say(CODES)


def show(report: "RetrievalComparison") -> None:
    """The comparison as a table and sentences."""
    from truncate_kit.report.search_tables import comparison_sentences, comparison_table

    table(*comparison_table(report), on_page=False)
    say(*comparison_sentences(report))
