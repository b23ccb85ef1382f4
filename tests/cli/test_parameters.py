"""Errors of the library name its parameters; a command prints them as its own options, and no others."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import truncate_kit
from truncate_kit_cli.app import COMMANDS, main
from truncate_kit_cli.parameters import FUNCTIONS, in_options

FILLED_IN = "1"
OTHER_PROGRAMS = re.compile(r"pip install --force-reinstall|torchrun with --nproc-per-node|ray start --(head|address)")


@functools.cache
def sources() -> dict[Path, ast.Module]:
    """All modules of the library, parsed by whoever runs a test that reads them."""
    return {path: ast.parse(path.read_text()) for path in Path(truncate_kit.__file__).parent.rglob("*.py")}


def texts_of(tree: ast.Module) -> Iterator[str]:
    """All strings of a module but its docstrings, with 1 for each part that is filled in."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def parameters_of(tree: ast.Module) -> Iterator[str]:
    """The names of all arguments of functions and fields of classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ClassDef):
            yield from (part.target.id for part in node.body if isinstance(part, ast.AnnAssign))


@functools.cache
def texts() -> list[str]:
    """What the library says, without the commands of other programs."""
    return sorted({OTHER_PROGRAMS.sub("", text) for tree in sources().values() for text in texts_of(tree)})


NAMED = re.compile(r"`(\w+)(\(|=|`)")


def options_of(command: str, capfd) -> set[str]:
    """A command's options, as its help lists them."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z-]*", capfd.readouterr().out))


def named_options(line: str) -> list[tuple[str | None, str]]:
    """The options in a line, each with the command it stands behind, None where there is none."""
    found, command = [], None
    for word in line.replace("truncate-kit ", "truncate-kit_").split():
        if word.startswith("truncate-kit_"):
            command = word.removeprefix("truncate-kit_").rstrip(".,;:)")
        elif option := re.match(r"\(?(--[a-z][a-z-]*)", word):
            found.append((command, option[1]))
        if word[-1] in ".,;:":
            command = None
    return found


def test_no_text_of_the_library_names_an_option():
    for path, tree in sources().items():
        if "page" in path.parts:  # it shows commands to copy
            continue
        for text in texts_of(tree):
            assert not re.search(r"(^|[\s(`])--[a-z]", OTHER_PROGRAMS.sub("", text)), text


def test_names_in_backticks_are_parameters_and_functions_of_the_library():
    found = {(match[1], match[2]) for text in texts() for match in NAMED.finditer(text)}
    assert len(found) > 40
    parameters = {name for tree in sources().values() for name in parameters_of(tree)}
    assert {name for name, end in found if end != "("} - {FILLED_IN} <= parameters
    called = {name for name, end in found if end == "("}
    assert called - {"load_encoder", "SentenceTransformer"} == FUNCTIONS.keys()  # those two are for model cards
    assert FUNCTIONS.keys() <= set(truncate_kit.__all__)


def test_a_command_names_options_of_its_own(capfd):
    known = {name: options_of(name, capfd) for name in COMMANDS}
    for command in COMMANDS:
        for text in filter(NAMED.search, texts()):
            for other, option in named_options(in_options(text, command)):
                assert option in known[other or command], text


@pytest.mark.parametrize(
    ("text", "command", "printed"),
    [
        ("Use a smaller `batch_size`.", "finetune", "Use a smaller --batch-size."),
        ("Use a smaller `batch_size`.", "analyze", "Use a smaller batch size."),
        ('Use `device="cpu"`.', "analyze", "Use --device cpu."),
        ('Use `device="cpu"`.', "nothing", "Use device cpu."),
        ("For example `scale=(0, 5)`.", "evaluate", "For example --scale 0,5."),
        ('`backends=["all"]` measures them too.', "bench", "--backends all measures them too."),
        ("Use `up_to=1`.", "combine", "Use --layers-up-to 1."),
        ("Use 1 or more `splits`.", "combine", "Use 1 or more --splits."),
        ("Use `public=True`.", "export", "Use --public."),
        ("Use `normalize=False`.", "export", "Use --no-normalize."),
        ("Give `model`.", "export", "Give MODEL."),
        ('Name them: `columns=("Ticket A", "B", "C")`.', "finetune", "Name them: --columns 'Ticket A,B,C'."),
        ('Make one with `export_onnx(settings=ExportSettings(precision="int8"))`.', "encode",
         "Make one with truncate-kit export MODEL --onnx --precision int8."),
        ("Start one with `ray start --head`; `shards` and `unknown()`.", "encode",
         "Start one with `ray start --head`; `shards` and `unknown()`."),
        ("Use `threads=2`.", None, "Use --threads 2."),
    ],
)  # fmt: skip
def test_parameters_in_the_words_of_a_command(text, command, printed):
    assert in_options(text, command) == printed
