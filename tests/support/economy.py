"""What tests do without, in their own process and in those that are forked for them."""

import base64
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import typer.main
from markupsafe import Markup
from matplotlib.figure import Figure
from transformers.utils import logging

from tests.support.loads import remembered_models
from tests.support.traces import remembered_traces
from truncate_kit.bench import runners
from truncate_kit.export import exporting, runtime
from truncate_kit.methods.distill import distilling
from truncate_kit.report import chart
from truncate_kit.report.view import Plot

# A PNG of one white pixel.
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")
PRELOADED = "tests.support.preloaded"


def _without_drawing(write: Callable[..., None]) -> Callable[..., None]:
    def savefig(figure: Figure, target: Any, **options: Any) -> None:
        if options.get("format") == "png":
            Path(target).write_bytes(PIXEL)
        else:
            write(figure, target, **options)

    return savefig


def _undrawn(plot: Plot) -> Markup:
    return Markup('<svg role="img" aria-label="{}"></svg>').format(plot.title)


_DRAWING = (Figure.savefig, Figure.draw_without_rendering, chart.inline_svg)


@contextmanager
def drawing() -> Iterator[None]:
    """Figures are drawn, as for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _DRAWING[0])
        patch.setattr(Figure, "draw_without_rendering", _DRAWING[1])
        patch.setattr(chart, "inline_svg", _DRAWING[2])
        yield


@contextmanager
def economical(folder: Path) -> Iterator[None]:
    """Spare what costs seconds and shows nothing; folder: of all processes of this run.

    - Tests that export the same model share its trace; all that follows it is done each time.
    - Of a folder that stays as it is, a small model is built once, and copied.
    - Nobody waits for the disk: tests kill processes, but no machine.
    - Calls are timed a few times only, and without rests between them.
    - Graphs run in one thread: that of the tests beside these waits in no loop for the next call.
    - Figures, and charts of pages, are plotted, but drawn only where a test asks for it (`drawing`): each takes an
      eighth of a second.
    - transformers reports errors only; silencing it, at each load, then changes nothing and clears no cache.
    - The server that forks workers has imported what all of them need.
    - The commands are read from their functions once, as in a process of a user.
    """
    logging.set_verbosity_error()
    set_verbosity = logging.set_verbosity
    with remembered_traces(folder), remembered_models(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(logging, "set_verbosity", lambda to: to == logging.get_verbosity() or set_verbosity(to))
        patch.setattr(runners, "_REST", 0.0)
        patch.setattr(distilling, "ROUNDS", 2)
        patch.setattr(distilling, "MOST_ROUNDS", 2)
        patch.setattr(Figure, "savefig", _without_drawing(Figure.savefig))
        patch.setattr(Figure, "draw_without_rendering", lambda *_: None)
        patch.setattr(chart, "inline_svg", _undrawn)
        for module in (exporting, runtime):
            patch.setattr(module, "usable_cores", lambda: 1)
        preload = ForkServerContext.set_forkserver_preload
        patch.setattr(ForkServerContext, "set_forkserver_preload", lambda self, _: preload(self, [PRELOADED]))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield
