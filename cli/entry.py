"""Entry point: catch interruptions before slow imports."""

import gc
import sys

GARBAGE_AFTER = 10_000
"""Allocations per garbage collection; with Python's 700, collecting takes 10 % of import time (benchmarks/startup)."""


def main() -> None:
    """Run the command line."""
    if sys.platform == "win32":  # no fcntl to lock files
        sys.stderr.write("Error: truncate-kit does not run under Windows.\n")
        sys.stderr.write("Hint: run it under Linux, for example in the Windows Subsystem for Linux (WSL).\n")
        raise SystemExit(1)
    gc.set_threshold(GARBAGE_AFTER)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        from .app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(130) from None
