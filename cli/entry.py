"""Where the program begins: nothing that takes time is imported before an interruption is caught."""

import gc
import sys

GARBAGE_AFTER = 10_000
"""Objects more than there were until Python looks for garbage, 700 by itself. Imports make hardly any: looking for it
takes a tenth of the time in which a command loads torch and transformers (benchmarks/startup)."""


def main() -> None:
    """Run the command line; interrupted while it is being loaded, it ends as it does later, without a traceback."""
    if sys.platform == "win32":  # its Python has no fcntl, by whose locks two runs keep out of each other's way
        sys.stderr.write("Error: truncate-kit does not run under Windows.\n")
        sys.stderr.write("Hint: run it under Linux, for example in the Windows Subsystem for Linux (WSL).\n")
        raise SystemExit(1)
    gc.set_threshold(GARBAGE_AFTER)
    try:
        from .app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(130) from None
