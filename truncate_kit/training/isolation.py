"""What trains has its process for itself, and leaves the state of torch as it was."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_TURN = threading.RLock()  # one that trains calls another: a study calls a sweep
if hasattr(os, "register_at_fork"):  # a child has no thread that would give it back
    os.register_at_fork(after_in_child=_TURN._at_fork_reinit)  # type: ignore[attr-defined]  # untyped; `logging` does so too


@contextmanager
def isolated() -> Iterator[None]:
    """One training at a time in this process; threads wait for each other.

    Dropout draws from the one generator of the process, so that two trainings side by side would change each other's
    result. It has its former state again afterwards, as those of GPUs that were in use before. What the caller has
    switched on does not reach the training: `torch.no_grad`, `torch.inference_mode`, `torch.autocast`.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # torch has no types there
    with _TURN, ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_autocast())
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Every product in the type of its factors, whatever the caller asked for."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
