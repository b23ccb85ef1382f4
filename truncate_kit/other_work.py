"""What other processes do while something is timed here."""

import os
import time
from pathlib import Path

QUIET = 0.1
"""Share of the processor that others may take before it is worth a word."""


class OtherWork:
    """How much of the processor others take from here on; Linux only."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """Their part of all processor time since the start, 0 … 1; None where the system does not say."""
        now = self._read()
        if self._start is None or now is None:
            return None
        wall, own, busy = (after - before for after, before in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of wall clock, of this process, and of everything but idling on all cores together."""
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in fields]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), time.process_time(), busy
