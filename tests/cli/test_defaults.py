"""A settings dataclass owns its defaults, and the option of the same name shows them."""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer

from truncate_kit_cli.app import COMMANDS, app

# Options whose default is not that of the field of the same name, and why.
OTHERS = {
    ("contrast", "last_cls"): "refused where the pooling has none, if it was given",
    ("distill", "layer"): "auto is resolved to a layer, or to None",
    ("freeze", "steps"): "by default those that the texts given allow",
    ("encode", "normalize"): "by default as the model does, which the settings do not know",
}


def module_of(command):
    return importlib.import_module(f"truncate_kit_cli.{command}")


def settings_of(command):
    """The settings classes of the library that the command's module imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module_of(command)))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("truncate_kit."):
            for name in (alias.name for alias in node.names):
                if name.endswith(("Settings", "Format", "Budget")):
                    found.append(getattr(importlib.import_module(node.module), name))
    return list(dict.fromkeys(found))


@functools.cache
def fields_of(command):
    """Default by name, of all fields of these classes that have one; that of the class that is imported first."""
    found = {}
    for kind in settings_of(command):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found.setdefault(field.name, field.default)
    return found


def options_of(command):
    """Default and help by name, of the options of a command."""
    function = getattr(module_of(command), command)
    hints = get_type_hints(function, vars(module_of(command)), include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(hints[name]) is Annotated:
            yield name, parameter.default, get_args(hints[name])[1].help or ""


def as_typed(option, value):
    """A field's value as the option has it: a list between commas, seeds by their number."""
    if option == "seeds":
        return len(value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


SHARED = [
    (command, name, default, text, fields_of(command)[name])
    for command in COMMANDS
    for name, default, text in options_of(command)
    if name in fields_of(command) and (command, name) not in OTHERS
]
IDS = [f"{command} {name}" for command, name, *_ in SHARED]


@pytest.mark.parametrize(("command", "option", "default", "text", "field"), SHARED, ids=IDS)
def test_an_option_has_the_default_of_its_field(command, option, default, text, field):
    expected = as_typed(option, field)
    if default is None and expected is not None:  # what is left out keeps the default of the settings, which help says
        assert f"by default {expected}" in text
    else:
        assert default == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_an_option_names_others_of_its_own_command(command):
    parameters = typer.main.get_command(app).commands[command].params
    own = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    named = {name for option in parameters for name in re.findall(r"--[a-z][a-z-]+", getattr(option, "help", "") or "")}
    assert named <= own


def test_every_command_with_settings_is_compared():
    compared = {command for command, *_ in SHARED}
    assert compared == {
        "analyze",
        "bench",
        "combine",
        "contrast",
        "distill",
        "encode",
        "evaluate",
        "export",
        "finetune",
        "freeze",
    }
    assert {name for command, name, *_ in SHARED if command == "analyze"} >= {"estimator", "kernel", "max_texts", "raw"}
    options = {(command, name) for command in COMMANDS for name, *_ in options_of(command)}
    assert OTHERS.keys() <= options
    assert all(name in fields_of(command) for command, name in OTHERS)


@pytest.mark.parametrize(("command", "option", "default", "text", "field"), SHARED, ids=IDS)
def test_no_default_is_written_twice(command, option, default, text, field):
    """Where a field has a value, the command takes it from there: no number or name stands in its own parameters."""
    (function,) = [
        node
        for node in ast.parse(inspect.getsource(module_of(command))).body
        if isinstance(node, ast.FunctionDef) and node.name == command
    ]
    names = [argument.arg for argument in function.args.args]
    written = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))[option]
    assert not isinstance(written, ast.Constant) or written.value in (None, False)
