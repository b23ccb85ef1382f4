"""Commands in README files and docs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("README.md")])

_LEADS = re.compile(r"^(?:\S+/bin/|torchrun .*\$\(which )truncate-kit\)?(?= |$)", re.MULTILINE)
_FENCED, _INDENTED = re.compile(r"```sh\n(.*?)```", re.DOTALL), re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_QUOTED = re.compile(r"`((?:[A-Z]+=\S+ )*(?:python -m benchmarks\.|truncate-kit )[^`]+)`")


def commands(text: str) -> Iterator[list[str]]:
    """Words of every command of a benchmark or the product; what is set before it and comments are left out."""
    blocks = [*_FENCED.findall(text), *_INDENTED.findall(text)]
    lines = [line for block in blocks for line in re.split(r"\n|&&", block.replace("\\\n", " "))]
    for line in lines + _QUOTED.findall(text):
        words = shlex.split(_LEADS.sub("truncate-kit", line.strip()), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        if (words[:2] == ["python", "-m"] and words[2].startswith("benchmarks.")) or words[:1] == ["truncate-kit"]:
            yield words
