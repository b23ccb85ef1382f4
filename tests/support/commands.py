"""The command line in this process: what it prints and how it fails."""

import functools
import json
import re
from typing import Any

import jsonschema
import pytest

from tests.support.files import small_disk
from truncate_kit_cli.app import command_of, function_of, main

Capture = pytest.CaptureFixture[str]


def ended(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run a command; return exit code, stdout and stderr."""
    capture.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    assert "Traceback" not in out + err
    return int(str(end.value.code or 0)), out, err


def scored(text: str) -> dict[str, float]:
    """The values of the only row that `evaluate --json` printed."""
    (row,) = json.loads(text)["rows"]
    return dict(row["values"])


def run(capture: Capture, *arguments: object) -> str:
    """What a command that succeeds prints on stdout."""
    return run_both(capture, *arguments)[0]


def run_both(capture: Capture, *arguments: object) -> tuple[str, str]:
    """What a command that succeeds prints on stdout and on stderr."""
    code, out, err = ended(capture, *arguments)
    assert not code, out + err
    if "--json" in arguments:
        check_json(str(arguments[0]), out)
    return out, err


def run_json(capture: Capture, *arguments: object) -> Any:
    """What a command that succeeds prints with `--json`."""
    return json.loads(run(capture, *arguments, "--json"))


def check_json(command: str, text: str) -> None:
    """Raise `jsonschema.ValidationError` where a document is not as the schema of the package has it."""
    _validator(command).validate(json.loads(text))


@functools.cache
def _validator(command: str) -> Any:
    # That the schema itself is one is checked once, in tests/cli/test_schemas.py: it takes ten times as long.
    return jsonschema.Draft202012Validator(json.loads(function_of(command).schema()))


def refused(capture: Capture, *arguments: object) -> str:
    """The lines of a problem: all that a command that fails prints."""
    code, out, err = ended(capture, *arguments)
    assert (code, out) == (1, ""), err
    return err


def fails(capture: Capture, *arguments: object) -> str:
    """Message and hint of a command that fails, after checking that one line names the problem and one the hint."""
    code, out, err = ended(capture, *arguments)
    assert code == 1, err
    assert not re.search("[\x00-\x08\x1b\x7f-\x9f]", out + err)
    lines = err.strip().splitlines()
    assert [line for line in lines if line.startswith("Error: ")] == [lines[-2]], err
    assert lines[-1].startswith("Hint: ")
    assert len(lines[-1]) > len("Hint: 12345678")
    elsewhere = re.compile(r"truncate-kit [^.;,]*")  # a command that helps, with options of its own
    named = {option for line in lines[-2:] for option in re.findall(r"(?<!\S)--[a-z-]+", elsewhere.sub("", line))}
    own = command_of(str(arguments[0])).params
    assert named <= {option for parameter in own for option in parameter.opts}, lines
    assert "`" not in lines[-1] or "`hf auth login`" in lines[-1], lines
    return "\n".join(lines[-2:])


def fails_on_a_full_disk(capsys: Capture, limit: int, *arguments: object) -> str:
    """The message where no file may grow beyond `limit` bytes."""
    with small_disk(limit):
        message, hint = fails(capsys, *arguments).splitlines()
    assert message.startswith("Error: Cannot write ")
    assert ".tmp/" not in message
    assert hint.startswith("Hint: Free some space")
    return message
