"""Where the program begins: nothing that takes time is imported before an interruption is caught."""

import sys


def main() -> None:
    """Run the command line; interrupted while it is being loaded, it ends as it does later, without a traceback."""
    try:
        from .app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(130) from None
