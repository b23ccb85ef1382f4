"""`truncate-kit report`: one HTML page of a run, or of two side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .options import results_option
from .output import note, print_json, say

if TYPE_CHECKING:
    from truncate_kit.report.writing import PageReport


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Workspace to tell.")] = options.WORKSPACE,
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second one, to compare the two.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, results_option("The file; by default report.html in RUN, or comparison.html for two.")
    ] = None,
    open_page: Annotated[bool, results_option("Show it in the browser.", "--open")] = False,
    as_json: options.Json = False,
) -> None:
    """Write what a workspace holds as one HTML page that needs no network: the recommendation and all behind it."""
    from truncate_kit.report.writing import write_page

    found = write_page(run, other, out=out)
    if as_json:
        print_json(found)
    else:
        show(found)
    if open_page:
        _open(Path(found.page), quiet=as_json)


def show(found: "PageReport") -> None:
    """The recommendation, what would add to it, and where the page is."""
    say(*found.recommendations)
    for what, command in zip(found.missing, found.commands, strict=True):
        say(f"{what}. This adds it: {command}")
    say(f"Page: {found.page} ({found.file_bytes / 1e3:,.0f} kB, opens without a network)")


def _open(page: Path, *, quiet: bool) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"No browser was found here: open {page} yourself.", quiet=quiet)
