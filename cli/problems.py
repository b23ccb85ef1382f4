"""One table from what went wrong to what the user reads: a line that says it, a line that says what to do."""

import contextlib
import errno
import os

from truncate_kit.errors import NO_FOLDER, TruncateKitError, UsageError
from truncate_kit.hardware import is_out_of_memory

from .parameters import in_options

EXIT_PROBLEM, EXIT_DEFECT, EXIT_INTERRUPTED = 1, 70, 130
# Commands that write nothing before they end; of `evaluate`, one suite does.
_BEGIN_ANEW = ("analyze", "bench", "combine", "compare", "cut", "doctor", "export", "report", "status")
_MOST_FOLDERS = 200  # Path.mkdir calls itself for each

_SPACE = "Free some space or name another place as `out`; what was there before is unchanged."
_RIGHTS = "Check who may read and write there, or name another place as `out`."
_MEMORY = "Use a smaller `batch_size` or `max_length`, or close other programs."
_DEEP = "Look for folders a thousand deep in the workspace or the model; nothing that is meant well has them."
_OS_HINTS = {
    errno.ENOENT: "Check the path; a relative one starts in the current folder.",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOTDIR: NO_FOLDER,
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: "Raise the limit of open files (ulimit -n) and run the same command again.",
}


def check_arguments(arguments: list[str]) -> None:
    """Raise `UsageError` for an argument that no file of results could hold: names are kept there as UTF-8.

    Also for one of more folders than Python makes one inside the other, and for such a name of the working folder,
    which goes before all relative ones.
    """
    with contextlib.suppress(OSError):  # it may be gone; absolute paths need none
        if _is_broken(folder := os.getcwd()):  # noqa: PTH109  # as the text that it is
            raise UsageError(
                f"The working folder {folder!a} has a name that is not UTF-8 text.", hint="Rename it, or go elsewhere."
            )
    for argument in arguments:
        if argument.count("/") > _MOST_FOLDERS:
            raise UsageError(
                f"An argument names a path of {argument.count('/'):,} folders, one inside the other.",
                hint=f"At most {_MOST_FOLDERS} are taken: name a place that is less deep.",
            )
        if "\0" in argument or (not argument.isprintable() and _is_broken(argument)):
            raise UsageError(
                f"The argument {argument!a} is not UTF-8 text.",
                hint="Rename the file or folder, or set a locale with UTF-8.",
            )


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def interruption(arguments: list[str]) -> str:
    """What an interrupt leaves: what the same command goes on from, or nothing."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    if command in _BEGIN_ANEW:
        return f"Interrupted; {command} keeps nothing unfinished: the same command begins anew."
    return "Interrupted; the same command goes on from what was kept, if anything was."


def describe(error: Exception, command: str) -> tuple[str, str, int]:
    """Message, hint and exit code of whatever escaped a command, in the words of the command's options."""
    message, hint, code = _described(error)
    return in_options(message, command), in_options(hint, command), code


def _described(error: Exception) -> tuple[str, str, int]:
    if isinstance(error, TruncateKitError):
        return str(error), error.hint, EXIT_PROBLEM
    if is_out_of_memory(error):
        return f"Out of memory. {error}".strip(), _MEMORY, EXIT_PROBLEM
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        hint = _OS_HINTS.get(error.errno or 0, "Check the path, its permissions, the free space and the connection.")
        return f"{error.strerror or str(error).rstrip('.') or type(error).__name__}{where}.", hint, EXIT_PROBLEM
    if isinstance(error, RecursionError):
        return "Folders or values lie in each other more deeply than Python follows.", _DEEP, EXIT_PROBLEM
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of `Path.resolve`
        return f"{error}.", "Check where its links lead.", EXIT_PROBLEM
    return (
        f"This is a defect of truncate-kit: {type(error).__name__}: {error}",
        "Set TRUNCATE_KIT_TRACEBACK=1 to see where, and report it.",
        EXIT_DEFECT,
    )
