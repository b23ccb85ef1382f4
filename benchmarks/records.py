"""Results that a benchmark keeps: JSON lines, each `{"name": …, "content": …}`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.common import read_rows
from truncate_kit.core.files import write_text


class Records:
    """JSON values by name, in a file that gets a line whenever one is added: what stopped midway is continued."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self._found[record["name"]] = record["content"]

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def values(self) -> list[Any]:
        """Return all contents, by the order of their names."""
        return [self._found[name] for name in sorted(self._found)]

    def items(self) -> list[tuple[str, Any]]:
        """Return all names and contents, by the order of the names."""
        return sorted(self._found.items())

    def add(self, name: str, content: Any) -> None:
        """Append one."""
        self._found[name] = content
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(name, content))

    def replace(self, contents: dict[str, Any]) -> None:
        """Write these and no others, by the order of their names."""
        self._found = dict(sorted(contents.items()))
        write_text(self.path, "".join(_line(*item) for item in self._found.items()))


def _line(name: str, content: Any) -> str:
    return json.dumps({"name": name, "content": content}, ensure_ascii=False, allow_nan=False) + "\n"


PUBLISHED = Path(__file__).parent / "published"
TRANSFER = ("1", "4")
"""The tables of `bert_lc` that have accuracies of transfer; its others have correlations on similarity."""


def published(paper: str, *, transfer: bool = False) -> list[dict[str, str]]:
    """Read the rows of `bert_lc`, `layer_attention` or `freeze`; of `bert_lc` one half."""
    rows = read_rows(PUBLISHED / f"{paper}.csv")
    return [row for row in rows if (row["table"] in TRANSFER) == transfer] if paper == "bert_lc" else rows
