"""Plain English: turns of phrase that readers stumble over stay rare, and so do commit subjects that are no command.

`LIMITS` are occurrences per 1,000 words, just above what was reached; only lower them.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = {
    "where": r"\bwhere\b",
    "nothing, none, nobody": r"\b(nothing|none|nobody)\b",
    "that of, those of, that which": r"\b(that|those) of\b|\bthat which\b",
    "of which, whose": r"\bof which\b|\bwhose\b",
}
LIMITS = {
    "pages": (0.3, 1.6, 0.4, 0.2),
    "package": (0.2, 1.4, 0.3, 0.4),
}
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("README.md")]
MODULES = [path for folder in ("truncate_kit", "cli") for path in sorted((ROOT / folder).rglob("*.py"))]
WORDS = {"pages": 20_000, "package": 20_000}


def prose(path):
    """The text of a page without code; docstrings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
    alone = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    parts = [str(node.value) for node in alone if isinstance(node, ast.Constant)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join([*parts, *(token.string[1:] for token in tokens if token.type == tokenize.COMMENT)])


@pytest.mark.parametrize(("kind", "paths"), [("pages", PAGES), ("package", MODULES)])
def test_odd_turns_of_phrase_stay_rare(kind, paths):
    text = " ".join(map(prose, paths))
    words = len(text.split())
    assert words > WORDS[kind]
    rates = {name: 1000 * len(re.findall(pattern, text, re.IGNORECASE)) / words for name, pattern in PATTERNS.items()}
    limits = dict(zip(PATTERNS, LIMITS[kind], strict=True))
    assert {name: rate for name, rate in rates.items() if rate > limits[name]} == {}


TAKEN = ["Share traces between heads", "Pass texts on", "Embed words\n\nAdded because they are short.", "A" * 72]
REFUSED = ["Fix " + "a" * 69, "Shared traces", "Shares traces", "Sharing traces", "share traces", "The hook"]


def test_the_hook_takes_subjects_that_are_commands():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = [hook for repo in config["repos"] for hook in repo["hooks"] if hook["id"] == "commit-subject"]
    refused = re.compile(hook["entry"], re.MULTILINE | re.DOTALL)  # as pygrep does it
    assert [subject for subject in TAKEN + REFUSED if refused.search(subject)] == REFUSED
