"""Settings become options, and parameters in messages become options of the command that runs."""

import re
from typing import Any

import pytest
import typer
import typer.main

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import LAYERS, Bounds, Result, names, seeds_setting, setting
from truncate_kit_cli.app import COMMANDS, command_of
from truncate_kit_cli.console import begin, in_options
from truncate_kit_cli.options import command


class Size(Result):
    width: int = setting(3, "How wide.", LAYERS, bounds=Bounds(1, 9))
    sides: tuple[str, ...] = setting(("a",), "Which.", LAYERS, choices=("a", "b"), parse=names, default="a")
    depth: float | None = setting(None, "How deep.", LAYERS, name="--deep")
    keeps: bool = setting(True, "Leave out.", LAYERS, name="--without", default=False, parse=lambda out: not out)
    seeds: tuple[int, ...] = seeds_setting((0, 1), "Seeds.")
    hidden: int = 7


def run(*arguments: str, kind: Any = Size) -> Any:
    """The settings that a command gets from what is typed."""
    found = []

    @command()
    def made(name: str = "x", *, size: kind) -> None:
        found.append((name, size))

    alone = typer.Typer()
    alone.command()(made)
    typer.main.get_command(alone)(list(arguments), standalone_mode=False)
    return found[0]


def test_each_field_with_a_help_is_an_option():
    assert run() == ("x", Size())
    typed = ("--width", "5", "--sides", "b, a", "--deep", "0.5", "--without", "--seeds", "3", "--name", "y")
    assert run(*typed) == ("y", Size(width=5, sides=("b", "a"), depth=0.5, keeps=False, seeds=(0, 1, 2)))


@pytest.mark.parametrize(
    "typed", [("--width", "0"), ("--width", "10"), ("--sides", "c"), ("--sides", ""), ("--seeds", "0")], ids=" ".join
)
def test_what_a_field_refuses_the_command_refuses(typed):
    with pytest.raises(UsageError):
        run(*typed)


def test_python_calls_a_command_with_what_is_typed():
    found = []

    @command("truncate-kit made")
    def made(*, size: Size, rest: int = 2) -> None:
        found.append((size, rest))

    made(width=2, rest=3)
    assert found == [(Size(width=2), 3)]
    assert made.examples == ("truncate-kit made",)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_an_option_names_others_of_its_own_command(name):
    parameters = command_of(name).params
    own = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    named = {name for option in parameters for name in re.findall(r"--[a-z][a-z-]+", getattr(option, "help", "") or "")}
    assert named <= own


@pytest.mark.parametrize(
    ("text", "name", "printed"),
    [
        ("Use a smaller `batch_size`.", "finetune", "Use a smaller --batch-size."),
        ("Use a smaller `batch_size`.", "analyze", "Use a smaller batch size."),
        ('Use `device="cpu"`.', "analyze", "Use --device cpu."),
        ("For example `scale=(0, 5)`.", "evaluate", "For example --scale 0,5."),
        ('`backends=["all"]` measures them too.', "bench", "--backends all measures them too."),
        ("Use `up_to=1`.", "combine", "Use --layers-up-to 1."),
        ("Use `public=True`.", "export", "Use --public."),
        ("Use `normalize=False`.", "export", "Use --no-normalize."),
        ("Give `model`.", "export", "Give MODEL."),
        ('Name them: `columns=("Ticket A", "B", "C")`.', "finetune", "Name them: --columns 'Ticket A,B,C'."),
        (
            'Make one with `export_onnx(settings=ExportSettings(precision="int8"))`.',
            "encode",
            "Make one with truncate-kit export MODEL --precision int8.",
        ),
        ("With `ray start --head`; `unknown()`.", "encode", "With `ray start --head`; `unknown()`."),
    ],
)
def test_parameters_in_the_words_of_a_command(text, name, printed):
    begin(command_of(name))
    assert in_options(text) == printed
