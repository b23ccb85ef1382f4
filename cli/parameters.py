"""The library's parameters and functions in the words of a command: its options, and the commands themselves.

Errors name a parameter in backticks, alone or with its value, and a function with its parentheses:
`batch_size`, `device="cpu"`, `export_onnx(settings=ExportSettings(precision="int8"))`.
"""

import ast
import functools
import re
import shlex

import typer.main

# Parameters whose option has another name: that of the command's own parameter.
OTHER_NAMES = {
    "address": "ray_address",
    "chunk": "chunk_size",
    "count": "workers",
    "cpus": "threads",
    "extras": "extra",
    "gpus": "gpus_per_worker",
    "layers": "layer",
    "out": "folder",
    "over": "attend",
    "pairs": "data",
    "precision": "vectors",
    "raw": "texts",
    "rows": "triplets",
    "search_pairs": "data",
}
FUNCTIONS = {
    "combine": "truncate-kit combine MODEL",
    "diagnose": "truncate-kit doctor",
    "export_onnx": "truncate-kit export MODEL --onnx",
    "finetune": "truncate-kit finetune MODEL",
    "finetune_contrastive": "truncate-kit contrast MODEL",
    "finetune_frozen": "truncate-kit freeze MODEL",
    "keep_words": "truncate-kit cut MODEL --vocabulary-from FILE",
    "truncate": "truncate-kit cut MODEL --layer N",
}
_NAMED = re.compile(r"`(\w+)(?:=([^`]+)|\(([^`]*)\))?`")
_KEYWORD = re.compile(r"(\w+)=([^,()]+)(?=[,)]|$)")  # also inside the settings of a call


def in_options(text: str, command: str | None = None) -> str:
    """A text of the library with its parameters as options of `command`; None takes those of all commands.

    A parameter that the command has no option for is named in plain words; what is neither stays as it is.
    """
    known = _parameters(None)
    own = known if command is None else _parameters(command)

    def replaced(match: re.Match[str]) -> str:
        name, value, arguments = match.groups()
        if arguments is not None:
            return _called(name, arguments) or match[0]
        option = _option(own, name, value)
        if option is None and (name in known or name in OTHER_NAMES):
            return " ".join((name.replace("_", " "), *([_written(value)] if value else [])))
        return option or match[0]

    return _NAMED.sub(replaced, text)


@functools.cache
def _parameters(command: str | None) -> dict[str, typer.core.TyperOption | typer.core.TyperArgument]:
    """The parameters of a command, or of all of them, by name."""
    from .app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # of a group
    chosen = commands.values() if command is None else [commands[command]] if command in commands else []
    return {parameter.name: parameter for one in chosen for parameter in one.params}


def _called(function: str, arguments: str) -> str | None:
    """The command that does what a call of the library does."""
    if function not in FUNCTIONS:
        return None
    own = _parameters(FUNCTIONS[function].split()[1])
    given = (_option(own, name, value) for name, value in _KEYWORD.findall(arguments))
    return " ".join((FUNCTIONS[function], *(part for part in given if part)))


def _option(
    own: dict[str, typer.core.TyperOption | typer.core.TyperArgument], name: str, value: str | None
) -> str | None:
    """A parameter as it is typed, with its value if there is one; None where there is no such option."""
    found = own.get(name) or own.get(OTHER_NAMES.get(name, ""))
    if found is None:
        return None
    if isinstance(found, typer.core.TyperArgument):
        return found.metavar or name.upper()
    if value in ("True", "False"):
        flags = found.opts if value == "True" else found.secondary_opts
        return flags[0] if flags else None
    return " ".join((found.opts[-1], *([_written(value)] if value else [])))


def _written(value: str) -> str:
    """A Python literal as it is typed in a shell; whatever else stands there was written by somebody, and stays."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
    return shlex.quote(",".join(map(str, literal)) if isinstance(literal, (tuple, list)) else str(literal))
