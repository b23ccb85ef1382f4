"""Entry point: catch interruptions before slow imports."""

import gc
import sys

GARBAGE_AFTER = 10_000
"""The default, 700, takes 10 % of importing torch and transformers (benchmarks/startup)."""


def main() -> None:
    """Run the command line without tracebacks for interruptions."""
    if sys.platform == "win32":  # no fcntl for locks
        sys.stderr.write("Error: truncate-kit does not run under Windows.\n")
        sys.stderr.write("Hint: run it under Linux, for example in the Windows Subsystem for Linux (WSL).\n")
        raise SystemExit(1)
    gc.set_threshold(GARBAGE_AFTER)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # characters that a terminal lacks
    try:
        from .app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(130) from None
