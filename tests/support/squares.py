"""Work for engines that needs no model: it squares numbers, and dies, raises or waits when a number says so."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from truncate_kit.core.errors import TruncateKitError

DEADLY, WRONG, ODD, LOGGED = 100, 200, 300, 400


class OddError(Exception):
    """An error that can be written and not read, as some libraries have them."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@dataclass
class Squares:
    """deaths: a folder in which a worker notes that it died, by default it always dies. homes: of its folders."""

    weights: torch.Tensor
    deaths: Path | None = None
    seconds: float = 0.0
    device: str = "nowhere"
    homes: Path | None = None

    def move(self, device: str) -> None:
        self.device = device
        if self.homes is not None:  # it goes with the work
            self.home = tempfile.TemporaryDirectory(dir=self.homes)

    def perform(self, number: int, send: Callable[[object], None]) -> tuple[int, int, str]:
        if number == DEADLY and (self.deaths is None or not (self.deaths / "died").exists()):
            if self.deaths is not None:
                (self.deaths / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == WRONG:
            raise TruncateKitError("Diverged in epoch 1, step 3.", hint="Use a smaller `learning_rate`.")
        if number == ODD:
            raise OddError(1, 2)
        if number == LOGGED:
            logging.getLogger("truncate_kit.core.hardware").warning("Not enough memory for a batch of %d.", number)
        for step in range(1, 4):
            send((f"number {number}", step, 3))
        send(("squared", number))
        time.sleep(self.seconds)
        return int(self.weights[1]) * number * number, os.getpid(), self.device
