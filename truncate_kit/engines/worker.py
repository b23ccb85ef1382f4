"""A worker process of `Processes`: reads work and tasks from a socket, answers there, and ends with its other side.

Started as a module with the number of the socket, the device and the CPU threads. A fresh process rather than a fork,
because CUDA and OpenMP do not survive one, and rather than `multiprocessing.spawn`, which would import the user's
script a second time.
"""

import signal
import sys
from multiprocessing.connection import Connection

import torch

from truncate_kit.engines.base import Work
from truncate_kit.engines.messages import TERMINATED, Answer, answer, logs_sent, throttled, unpacked


def serve(connection: "Connection[Answer, tuple[bytes | None, object]]", device: str) -> None:
    """Answer until the other side closes; its end shows at the latest when this side sends a message."""
    work: Work[object, object] | None = None

    def perform() -> object:
        nonlocal work
        if payload is not None:
            work = unpacked(payload, device)
        assert work is not None
        with logs_sent(send):
            return work.perform(task, send)

    send = throttled(connection.send)
    while True:
        payload, task = connection.recv()
        connection.send(answer(perform))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that folders which were made for the work go
    torch.set_num_threads(int(sys.argv[3]))
    try:
        serve(Connection(int(sys.argv[1])), sys.argv[2])
    except (EOFError, ConnectionError):
        sys.exit(0)
