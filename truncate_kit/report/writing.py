"""From results to one HTML file that opens without a network."""

import base64
import functools
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from truncate_kit import __version__
from truncate_kit.errors import ModelError, UsageError
from truncate_kit.files import local_path, write_text
from truncate_kit.report.comparison import comparison
from truncate_kit.report.layout import MEASURE, TEXTS, Page
from truncate_kit.report.origins import origins
from truncate_kit.report.parts import part_of
from truncate_kit.report.run import Run, read_run
from truncate_kit.report.sections import sections
from truncate_kit.report.verdict import verdict
from truncate_kit.results import Result
from truncate_kit.wording import harmless

MOST_BYTES = 6 * 2**20
"""What a mail server lets through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReport(Result):
    """A page that was written.

    Attributes:
        page: The file.
        file_bytes: Its size.
        recommendations: One sentence for each run.
        grounds: How sure each is.
        commands: What would add the parts that are missing.
        missing: What each of them adds.
    """

    page: str
    file_bytes: int
    recommendations: tuple[str, ...]
    grounds: tuple[tuple[str, ...], ...]
    commands: tuple[str, ...]
    missing: tuple[str, ...] = ()


def write_page(run: Path, other: Path | None = None, *, out: Path | None = None) -> PageReport:
    """Write what a workspace holds, or two of them side by side, as one HTML file.

    Args:
        run: The workspace.
        other: Another one to compare it with.
        out: The file; by default `report.html` in `run`, or `comparison.html` for two.

    Raises:
        UsageError: Nothing is there, or `out` is called like another kind of file.
        ModelError: A model or its export is damaged.
        FileProblemError: The file cannot be written.
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):  # it would replace a model, or data
        raise UsageError(f"{out} does not end in .html.", hint="Name it like report.html.")
    runs = [read_run(folder) for folder in (run, *([] if other is None else [other]))]
    page = _page(runs[0]) if len(runs) == 1 else comparison(*runs)
    path = local_path(out or run / ("report.html" if other is None else "comparison.html"))
    text = rendered(page)
    if len(text.encode()) > MOST_BYTES:
        raise ModelError(f"The page would have {len(text) / 2**20:.1f} MiB.", hint="Remove some bench-*.json files.")
    write_text(path, text)
    missing = {command: what for part in page.sections for what, command in part.missing}
    return PageReport(
        page=str(path),
        file_bytes=path.stat().st_size,
        recommendations=tuple(found.sentence for _, found in page.verdicts),
        grounds=tuple(found.grounds for _, found in page.verdicts),
        commands=tuple(missing),
        missing=tuple(missing.values()),
    )


def _page(run: Run) -> Page:
    return Page(
        title=run.name,
        subtitle="What truncate-kit found, measured and made in this workspace.",
        verdicts=(("", verdict(run)),),
        sections=(*sections(run), *origins(run)),
    )


def rendered(page: Page) -> str:
    """The HTML. Every string is escaped but style, script and drawings, which come from this package."""
    script = _own_text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own_texts = {"style": Markup(_own_text("page.css")), "script": Markup(script)}
    template = _templates().get_template("page.html")
    return template.render(page=page, digest=digest, version=__version__, **own_texts)


def in_notebook(result: Result) -> str:
    """A result as a piece of HTML for a cell of a notebook: sentences, plots and tables, without a script."""
    style = Markup(_own_text("notebook.css"))
    return _templates().get_template("notebook.html").render(section=part_of(result), style=style)


@functools.cache
def _templates() -> Environment:
    loader = FunctionLoader(_own_text)
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"TEXTS": TEXTS, "MEASURE": MEASURE}
    environment.filters["prose"] = _prose
    return environment


def _shown(value: Any) -> Any:
    """What is put into the page: a text of others turns no direction of writing."""
    return harmless(value) if type(value) is str else value


def _prose(sentence: str) -> Markup:
    """A sentence in which no line breaks within an option's name."""
    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="option">\g<0></span>', str(escape(_shown(sentence)))))


def _own_text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
