"""Train one model in several processes: each embeds its share, all see all vectors."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from truncate_kit.core.errors import DeviceError, TruncateKitError
from truncate_kit.core.hardware import select_device, without_autocast

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one run; alone, every method returns its argument."""

    rank: int = 0  # number of this process
    size: int = 1  # number of processes

    @property
    def leads(self) -> bool:
        """Tell whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Take every `size`-th item."""
        return list(items[self.rank :: self.size])

    def gather(self, own: Tensor, total: int) -> Tensor:
        """Join the shares of all processes: (c, share, d) to (c, total, d)."""
        if self.size == 1:
            return own
        sizes = [len(range(rank, total, self.size)) for rank in range(self.size)]
        padded = nn.functional.pad(own.detach(), (0, 0, 0, max(sizes) - own.shape[1])).contiguous()
        shares = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(shares, padded)
        cut: list[Tensor] = [share[:, :size] for share, size in zip(shares, sizes, strict=True)]
        # Each computes the whole loss with gradients of its own share; `sum_gradients` adds up.
        cut[self.rank] = own
        return torch.cat(cut, dim=1)

    def sum_gradients(self, module: nn.Module) -> None:
        """Sum each gradient over the processes, a missing one as 0."""
        if self.size == 1:
            return
        for parameter in module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                distributed.all_reduce(parameter.grad)

    def agree(self, value: Item) -> Item:
        """Return the leader's value: clocks and roundings differ, decisions must not."""
        return self.collect(value)[0]

    def collect(self, value: Item) -> list[Item]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        distributed.all_gather_object(box, value)
        return box


ALONE = Group()

PATIENCE = timedelta(days=7)
"""Longest wait for another process: the leader may compute alone for hours."""

_LOST = "Look for its error in the output of the others; a process killed by the system leaves no message."


@contextmanager
def joined(device: str | None = None) -> Iterator[tuple[Group, str | None]]:
    """Join the processes of `torchrun`; yield group and device. Raises `DeviceError`."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE, device
        return
    backend = "gloo"
    if select_device(device).type == "cuda":
        place = int(os.environ.get("LOCAL_RANK", "0"))
        if place >= torch.cuda.device_count() > 0:
            raise DeviceError(
                f"Process {place} of this machine has no GPU: there are {torch.cuda.device_count()}.",
                hint=f'Start torchrun with --nproc-per-node {torch.cuda.device_count()}, or use `device="cpu"`.',
            )
        device, backend = f"cuda:{place}", "nccl"
        torch.cuda.set_device(select_device(device))
    distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Group(distributed.get_rank(), size), device
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise TruncateKitError("Another process of this run has ended.", hint=_LOST) from error
    finally:
        distributed.destroy_process_group()


def _is_lost(error: RuntimeError) -> bool:
    """Tell whether another process is gone: gloo's error is plain, NCCL's its own."""
    return isinstance(error, distributed.DistError) or "gloo/transport" in str(error)


_TURN = threading.RLock()  # reentrant: a study trains a sweep
if hasattr(os, "register_at_fork"):  # a child has no thread to release it
    os.register_at_fork(after_in_child=_TURN._at_fork_reinit)  # type: ignore[attr-defined]  # as in `logging`


@contextmanager
def isolated() -> Iterator[None]:
    """Allow one training at a time: dropout draws from the process's generator.

    Restores generators; suspends the caller's `no_grad`, `inference_mode` and `autocast`.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _TURN, ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_autocast())
        yield
