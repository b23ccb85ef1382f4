"""What tests do without, in their own process and in those that are forked for them."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from tests.support.loads import remembered_models
from tests.support.traces import remembered_traces
from truncate_kit.bench import roofline, timing
from truncate_kit.distillation import speed
from truncate_kit.export import checks, runtime


def _unless_without_memory(reset: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda layer: None if layer.weight.is_meta else reset(layer)


@contextmanager
def economical(folder: Path) -> Iterator[None]:
    """Spare what costs seconds and shows nothing; folder: of all processes of this run.

    - Tests that export the same model share its trace; all that follows it is done each time.
    - Of a folder that stays as it is, a small model is built once, and copied.
    - Nobody waits for the disk: tests kill processes, but no machine.
    - Calls are timed a few times only, and without rests between them.
    - What a processor can multiply is seen in matrices of 128 rows; users' have 1,536, and take it 0.07 s each.
    - Graphs run in one thread: that of the tests beside these waits in no loop for the next call.
    - Layers that loading builds before it has their weights draw none.
    - The commands are read from their functions once, as in a process of a user.
    """
    with remembered_traces(folder), remembered_models(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(timing, "_REST", 0.0)
        patch.setitem(roofline._SIZES, "cpu", 128)
        patch.setattr(speed, "ROUNDS", 2)
        patch.setattr(speed, "MOST_ROUNDS", 2)
        for module in (checks, runtime):
            patch.setattr(module, "usable_cores", lambda: 1)
        for kind in (torch.nn.Linear, torch.nn.Embedding):
            patch.setattr(kind, "reset_parameters", _unless_without_memory(kind.reset_parameters))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield
