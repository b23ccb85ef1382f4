"""The frame of the command line: version, help, exit codes, and what is said of everything that goes wrong."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
import torch

from tests.support.commands import ended, run_both
from truncate_kit import __version__
from truncate_kit.core.errors import LayerOutOfRangeError
from truncate_kit_cli.app import COMMANDS, PANELS, command_of, function_of
from truncate_kit_cli.console import describe


def run_with(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program in a process of its own, whose command `study` does `body`."""
    code = (
        "from truncate_kit_cli import app, options, project\n@options.command()\ndef study():\n    "
        f"{body}\nproject.study = study\napp.main(['study'])"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)


def test_version(capfd):
    for option in ("--version", "-V"):
        assert run_both(capfd, option) == (f"truncate-kit {__version__}\n", "")


def test_help_names_every_command(capfd):
    out, err = run_both(capfd, "--help")
    assert err == ""
    places = [out.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    for start, end, names in zip(places, [*places[1:], len(out)], PANELS.values(), strict=True):
        assert all(f"\n  {name} " in out[start:end] for name in names)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_ends_with_examples_that_parse(command, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out, err = run_both(capfd, command, "-h")
    assert err == ""
    assert out.startswith(f"Usage: truncate-kit {command} [OPTIONS]")
    shown = out.split("\nExamples:\n")[1].splitlines()
    assert [line.strip() for line in shown] == list(function_of(command).examples)
    for line in shown:
        words = shlex.split(line.partition(" < ")[0], comments=True)
        assert words[:2] == ["truncate-kit", command]
        command_of(command).make_context(command, words[2:])  # parsed and not run


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("analize",), "analize"),
        (("analyze", "--colour", "red"), "--colour"),
        (("finetune", "--epochs", "many"), "--epochs"),
        (("evaluate", "one", "two"), "two"),
        (("export", "--precision", "int4"), "'fp32', 'fp16', 'int8'"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments, named, capfd):
    code, out, err = ended(capfd, *arguments)
    assert (code, out) == (2, "")
    assert named in err


def test_an_interrupt_says_how_to_go_on():
    # A process started in the background of a script inherits SIGINT as ignored.
    listen = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    done = run_with(f"{listen}; os.kill(os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stderr.partition(" ")[0]) == (130, "Interrupted.")


def test_an_interrupt_while_the_program_is_loaded_is_no_traceback():
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; from truncate_kit_cli.entry import main; main()"
    # What is imported is listed as it ends, so that the interrupt falls into the middle.
    command = [sys.executable, "-X", "importtime", "-c", code, "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        loading = next(line for line in process.stderr if line.endswith(" typer\n"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    said = [line for line in err.splitlines() if loading and not line.startswith("import time:")]
    assert (process.returncode, out, said) == (130, "", ["Interrupted."])


def test_characters_that_a_terminal_lacks_are_written_another_way():
    code = """
from truncate_kit_cli.entry import main
try:
    main()
finally:
    from truncate_kit.core.workspace import Source
    from truncate_kit_cli.console import print_json
    print("3 × 4")
    print_json(Source(name="größer"))
"""
    command = [sys.executable, "-c", code, "--version"]
    how = {"capture_output": True, "text": True, "env": os.environ | {"PYTHONIOENCODING": "ascii"}}
    _, said, document = subprocess.run(command, check=True, **how).stdout.split("\n", 2)
    assert (said, json.loads(document)["name"]) == ("3 \\xd7 4", "größer")


def test_a_defect_is_one_line_and_a_hint_and_its_traceback_on_request():
    body = "raise ValueError('odd' + chr(10) + 'thing')"
    done = run_with(body, TRUNCATE_KIT_TRACEBACK="")
    assert (done.returncode, done.stdout) == (70, "")
    line, hint = done.stderr.splitlines()
    assert line == "Error: This is a defect of truncate-kit: ValueError: odd thing"
    assert "TRUNCATE_KIT_TRACEBACK=1" in hint
    done = run_with(body, TRUNCATE_KIT_TRACEBACK="1")
    assert (done.returncode, "in study" in done.stderr) == (70, True)


def out_of_cpu_memory() -> Exception:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    return raised.value


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "No space left on device (a/b).", "free disk space"),
        (OSError("the hub is away"), "the hub is away.", "the path"),
        (MemoryError(), "Out of memory.", "smaller `batch_size`"),
        (torch.OutOfMemoryError("CUDA out of memory."), "Out of memory. CUDA out of memory.", "smaller `batch_size`"),
        (out_of_cpu_memory(), "DefaultCPUAllocator", "smaller `batch_size`"),
        (LayerOutOfRangeError(9, 8), "Layer 9 does not exist", "from 0 to 8"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_is_said_of_problems_that_are_no_defects(error, message, hint):
    said, advice, code = describe(error)
    assert message in said
    assert hint in advice
    assert code == 1


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("from truncate_kit_cli.app import app; app(['--help'], standalone_mode=False)", 24),
        ("import truncate_kit.report.measuring, truncate_kit.report.training, truncate_kit.report.distillation", 24),
    ],
    ids=["help", "views"],
)
def test_only_what_is_needed_is_loaded(code, most):
    count = "import sys; print(sum(name.partition('.')[0].startswith('truncate_kit') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{count}"], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) <= most
