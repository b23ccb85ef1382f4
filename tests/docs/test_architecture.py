"""The table of folders in docs/architecture.md is the order in which they import each other: downwards only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "truncate_kit"
ROW = re.compile(r"\| (`[^|]+`) \|")


def order(text: str) -> dict[str, int]:
    """The place of each folder and module of the package in the table, counted from the top, in a row from the left."""
    cells = [match[1] for line in text.splitlines() if (match := ROW.match(line))]
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    own = [name.removeprefix(f"{PACKAGE}/").rstrip("/").removesuffix(".py") for name in named]
    return {name: place for place, name in enumerate(own)}


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of modules that are imported anywhere but under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from imported(ast.Module([other], []))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0  # nothing in the package is named relative to where it stands
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module == PACKAGE else [str(node.module)]
        else:
            yield from imported(node)


def graph(package: Path) -> Iterator[tuple[str, str, str]]:
    """Part of the package that imports, part that is imported, and in which file."""
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        importer = place.parts[0].removesuffix(".py")
        for name in imported(ast.parse(path.read_text())):
            parts = name.split(".")
            if parts[0] == PACKAGE and len(parts) > 1 and parts[1] not in (importer, "__version__"):
                yield importer, parts[1], str(place)


def upwards(places: dict[str, int], package: Path) -> list[tuple[str, str, str]]:
    """The imports that do not lead downwards; the package's own door is above all."""
    found = [edge for edge in graph(package) if edge[0] != "__init__"]
    return [edge for edge in found if not places[edge[0]] < places[edge[1]]]


def test_imports_lead_downwards_in_the_table():
    places = order((ROOT / "docs/architecture.md").read_text())
    parts = {path.stem for path in (ROOT / PACKAGE).iterdir() if path.is_dir() or path.suffix == ".py"}
    parts = {
        name
        for name in parts
        if (ROOT / PACKAGE / name / "__init__.py").exists() or (ROOT / PACKAGE / f"{name}.py").exists()
    }
    assert parts - places.keys() == {"__init__"}
    edges = {(importer, other) for importer, other, _ in graph(ROOT / PACKAGE)}
    assert len(edges) > 100
    assert ("frozen", "sweep") in edges
    assert upwards(places, ROOT / PACKAGE) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from truncate_kit.upper.x import y", True),
        ("from truncate_kit import upper", True),
        ("import truncate_kit.upper", True),
        ("def load():\n    from truncate_kit.upper import y", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from truncate_kit.upper import y", False),
        ("from truncate_kit.lower.x import y", False),
        ("from truncate_kit.lowest import y", False),
    ],
)
def test_an_import_that_leads_upwards_is_seen(line, found, tmp_path):
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower/x.py").write_text(line)
    places = order(
        "| folder | what |\n|---|---|\n| `truncate_kit/upper/` | a |\n| `truncate_kit/lower/`, `lowest.py` | b |\n"
    )
    assert upwards(places, tmp_path) == ([("lower", "upper", "lower/x.py")] if found else [])
