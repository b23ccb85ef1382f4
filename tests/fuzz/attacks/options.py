"""Every option and argument of every command, with values that nobody means."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.attacks.attack import Attack
from tests.fuzz.attacks.inputs import VALID

_NUMBERS = (
    "-1", "0", "1e309", "nan", "-inf", "1" + "0" * 30, "1e-320", "0x10", "1_0", "\u0663", "", " ", "9" * 5000, "True",
)  # fmt: skip
_PATHS = (
    "", "/", ".", "..", "p.csv", "p.csv/x", "nowhere/x/", "/dev/full", "/dev/null", "/dev/stdin", "~nouser/x", "m/",
    "x" * 5000, "a/" * 2000, "\x1b[31mred", "/proc/self/mem", "done/.lock", "t.txt/", "//", "http://x.invalid/y",
    "file:///etc/passwd", "C:\\x", "-", "*.csv", "/proc/1/environ", "-x", "done", "r",
)  # fmt: skip
_TEXTS = (
    "", " ", ",", "..", "1..", "..3", "3..1", "0..99999999999", ",".join(["1"] * 5000), "x" * 5000, "-1", "auto,1",
    "\x1b[31mred", "\u202eltr", "../../..", "a\nb", "1e309,1e309", "nan,nan", "0,1,2,3,4", "😀", "1,1", "\u0663", "1_0",
    "/dev/stdin", "/", "p.csv", "p.csv/x", "~nouser/x", "m/", "/dev/full", "r", "-x",
)  # fmt: skip
_LEFT_OUT = {"help", "json_schema", "engine", "ray_address", "push_to", "mteb", "against"}


def _values(parameter: Any) -> tuple[str, ...]:
    kind = parameter.type_descriptor.annotation
    if kind in (int, float):
        return _NUMBERS
    return _PATHS if kind is Path else _TEXTS


def attacks(home: Path) -> Iterator[Attack]:
    """Each with one value; the rest of the command line is valid."""
    import typer.main

    from truncate_kit_cli.app import app

    commands: Any = typer.main.get_command(app)
    for command, valid in VALID.items():
        arguments = [one.name for one in commands.commands[command].params if one.param_type_name == "argument"]
        for parameter in commands.commands[command].params:
            if parameter.name in _LEFT_OUT or getattr(parameter, "is_flag", False):
                continue
            for value in _values(parameter):
                words = [command, *valid.split()]
                given = [option for option in parameter.opts if option in words]
                if parameter.name in arguments:
                    place = 1 + arguments.index(parameter.name)
                    words[place : place + (words[place : place + 1] != ["--out"])] = [value]
                elif given:
                    words[words.index(given[0]) + 1] = value
                else:
                    words += [parameter.opts[0], value]
                yield Attack(name=f"{command} {parameter.name} {value[:24]!a}", words=tuple(words))
