"""What the site holds beside the pages of this folder, made while it is built.

The README is its first page. Whatever else of the repository a page links to, such as a table of a benchmark, is part
of the site too. A page for each command is made from the command line itself, and pages of the Python API from the
public names. Formulas become MathML, which browsers draw without a script.
"""

import os
import re
from html import unescape
from inspect import cleandoc
from pathlib import Path
from posixpath import relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import truncate_kit
from truncate_kit_cli.app import PANELS, command_of, function_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")
FOLDER = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+/)\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|source)[^>]+src="https?:|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:'
)

# Pages of the Python API: title, and the modules whose public names it holds.
API = {
    "models": ("Models", "models core vectors errors"),
    "export": ("Export and encoding", "export encode"),
    "data": ("Data", "data"),
    "layers": ("Layers", "analysis"),
    "training": ("Training", "methods training parallel"),
    "measuring": ("Measuring", "evaluation bench doctor"),
}


def place(path: Path) -> str:
    """Return a file's place in the site: docs at the top, other files as in the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def target(page: Path, link: str) -> Path | None:
    """Return the file that a link leads to (a folder's README), or None outside the repository."""
    path = Path(os.path.normpath(page.parent / link))
    if path.is_dir():
        path /= "README.md"
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def linked(page: Path, text: str) -> str:
    """Rewrite the links of a page for the site, which shows no folder without a README."""

    def replaced(match: re.Match[str]) -> str:
        found = target(page, match[1])
        here = Path(place(page)).parent.as_posix()
        return match[1] if found is None else relpath(place(found), here)

    def shown(match: re.Match[str]) -> str:
        return match[0] if target(page, match[2]) else match[1]

    parts = CODE.split(text)  # every second one is code
    return "".join(part if odd % 2 else LINK.sub(replaced, FOLDER.sub(shown, part)) for odd, part in enumerate(parts))


def reachable() -> list[Path]:
    """List README, docs, and every file they lead to over any number of links."""
    waiting = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    found: dict[Path, None] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        if path.suffix == ".md":
            text = "".join(CODE.split(path.read_text(encoding="utf-8"))[::2])
            waiting += [one for one in (target(path, link) for link in LINK.findall(text)) if one is not None]
    return list(found)


def command_page(name: str) -> str:
    """Make the page of a command: examples, its help, one table of options a panel."""
    command = command_of(name)
    context = command.make_context(name, [], resilient_parsing=True)
    first, _, rest = cleandoc(command.help).partition("\n")
    usage = " ".join(("truncate-kit", name, *command.collect_usage_pieces(context)))
    lines = [f"# {name}", "", first.replace("\b", ""), "", "```sh", *function_of(name).examples, "```"]
    lines += ["", "## Usage", "", "```text", usage, "```"]
    if rest := rest.replace("\b", "").strip("\n"):
        lines += ["", "```text", rest, "```"]
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            option, said = (text.replace("|", "\\|").replace("\n", " ") for text in record)
            said = said.replace("<", "&lt;")
            panel = parameter.rich_help_panel or ("Arguments" if parameter.param_type_name == "argument" else "Options")
            panels.setdefault(panel, []).append(f"| `{option}` | {said} |")
    for panel, rows in panels.items():
        what = "argument" if panel == "Arguments" else "option"
        lines += ["", f"## {panel}", "", f"| {what} | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """List all commands by panel of the help."""
    lines = ["# Commands", "", "What `truncate-kit COMMAND --help` says, a page for each."]
    for panel, names in PANELS.items():
        rows = [f"| [{name}]({name}.md) | {command_of(name).get_short_help_str(limit=200)} |" for name in names]
        lines += ["", f"## {panel}", "", "| command | what it does |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def api_pages() -> dict[str, str]:
    """Make a page of the Python API for each group of public names."""
    left = dict(truncate_kit._PUBLIC)
    pages = {}
    for page, (title, modules) in API.items():
        names = [name for name, module in left.items() if module.split(".")[1] in modules.split()]
        blocks = [f"::: {left.pop(name)}.{name}" for name in names]
        intro = "Every name here is imported from `truncate_kit` itself."
        pages[page] = "\n\n".join([f"# {title}", intro, *blocks]) + "\n"
    if left:
        raise PluginError(f"docs/hooks.py: no page of the Python API holds {', '.join(left)}.")
    return pages


def generated() -> dict[str, str]:
    """Return all generated pages by their place in the site."""
    pages = {"commands/index.md": commands_page()}
    pages |= {f"commands/{name}.md": command_page(name) for names in PANELS.values() for name in names}
    return pages | {f"api/{page}.md": text for page, text in api_pages().items()}


def expanded(entry: Any, places: list[str]) -> Any:
    """Expand names that end in / to all pages of that folder."""
    if isinstance(entry, dict):
        return {title: expanded(below, places) for title, below in entry.items()}
    if isinstance(entry, list):
        return [expanded(below, places) for below in entry]
    return [one for one in places if one.startswith(entry)] if entry.endswith("/") else entry


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of folders into the navigation."""
    places = [*generated(), *sorted(place(path) for path in DOCS.rglob("*.md"))]
    config.nav = expanded(config.nav, places)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and what pages lead to."""
    for uri, text in generated().items():
        files.append(File.generated(config, uri, content=text))
    for path in reachable():
        if files.get_file_from_path(place(path)) is None:
            files.append(File.generated(config, place(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links of repository files to their places in the site."""
    source = page.file.abs_src_path
    return markdown if source is None else linked(Path(source), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML."""

    def drawn(match: re.Match[str]) -> str:
        return convert(unescape(match[2]).strip(), display="block" if match[1] == "div" else "inline")

    return FORMULA.sub(drawn, html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse pages that load parts from elsewhere."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another place: {found[0]}")
    return output
