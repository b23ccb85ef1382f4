"""READMEs of benchmarks, pages of papers: their commands have options that scripts and product take, links lead on."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

from truncate_kit_cli.app import app

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = sorted([*BENCHMARKS.rglob("README.md"), *(ROOT / "docs/papers").glob("*.md")])
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if "\nif __name__ ==" in path.read_text(encoding="utf-8"))
FENCED, INDENTED = re.compile(r"```sh\n(.*?)```", re.DOTALL), re.compile(r"(?:^    .*\n)+", re.MULTILINE)
QUOTED = re.compile(r"`((?:[A-Z]+=\S+ )*(?:python -m benchmarks\.|truncate-kit )[^`]+)`")


def commands(text: str) -> Iterator[list[str]]:
    """Words of every command of these scripts or the product; what is set before it and comments are left out."""
    blocks = [*FENCED.findall(text), *INDENTED.findall(text)]
    for line in [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + QUOTED.findall(text):
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        if (words[:2] == ["python", "-m"] and words[2].startswith("benchmarks.")) or words[:1] == ["truncate-kit"]:
            yield words


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_commands_parse(page):
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "python":
            import_module(words[2]).PARSER.parse_args(words[3:])
        elif words[1:] not in (["--help"], ["--version"]):
            command = typer.main.get_command(app).commands[words[1]]
            if words[2:] != ["--help"]:
                command.make_context(words[1], words[2:])  # parsed and not run


def test_every_command_of_a_page_is_found():
    found = [words for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]
    named = {words[2] for words in found if words[0] == "python"}
    # The one that the page of its folder describes without a command.
    assert {module(path) for path in SCRIPTS} - named == {"benchmarks.bundled_pairs.generate", "benchmarks.gpu.lengths"}
    assert any(words[:2] == ["truncate-kit", "study"] for words in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=module)
def test_scripts_show_their_help(path, capsys):
    script = import_module(module(path))
    with pytest.raises(SystemExit, match="0"):
        script.main(["--help"])
    assert module(path) in capsys.readouterr().out  # the command that starts it
