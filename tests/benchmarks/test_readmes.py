"""Commands on pages parse, and links lead to files.

The site made of them is checked by `mkdocs build --strict`; what is here needs no more than the package.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import truncate_kit
from tests.support.readme_commands import PAGES, commands
from truncate_kit_cli.app import COMMANDS, command_of

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)")  # to a file, without the heading
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if "\nif __name__ ==" in path.read_text(encoding="utf-8"))
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_commands_parse(page):
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "python":
            import_module(words[2]).PARSER.parse_args(words[3:])
        elif words[1:] not in (["--help"], ["--version"], ["--install-completion"], ["--show-completion"]):
            command = command_of(words[1])
            if words[2:] not in (["--help"], ["--json-schema"]):
                command.make_context(words[1], words[2:])  # parsed and not run


@pytest.mark.parametrize("page", sorted((ROOT / "docs/papers").glob("*.md")), ids=lambda page: page.stem)
def test_commands_of_the_papers_say_what_they_work_on(page):
    """In a workspace where no command ran before; a command's name alone names the command."""
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "truncate-kit" and len(words) > 2:
            command = command_of(words[1])
            found = command.make_context(words[1], words[2:]).params
            assert [name for name in ("model", "data") if name in found and found[name] is None] == [], words


def test_every_command_of_a_page_is_found():
    found = [words for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]
    named = {words[2] for words in found if words[0] == "python"}
    # The one that the page of its folder describes without a command.
    assert {module(path) for path in SCRIPTS} - named == {"benchmarks.gpu.lengths"}
    assert any(words[:2] == ["truncate-kit", "study"] for words in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_to_files(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_command_of_the_product_is_in_a_guide():
    found = [words for page in (ROOT / "docs/guides").glob("*.md") for words in commands(page.read_text("utf-8"))]
    assert {words[1] for words in found if words[0] == "truncate-kit"} == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_python_takes_names_that_are_public(page):
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "truncate_kit":
                assert {name.name for name in node.names} <= set(truncate_kit.__all__)


@pytest.mark.parametrize("path", SCRIPTS, ids=module)
def test_scripts_show_their_help(path, capsys):
    with pytest.raises(SystemExit, match="0"):
        import_module(module(path)).main(["--help"])
    assert module(path) in capsys.readouterr().out  # the command that starts it
