"""The README shows what the demo printed."""

import re
from pathlib import Path

from benchmarks.demo import front

ROOT = Path(front.__file__).parents[2]


def test_the_front_page_has_rows_of_the_demo():
    printed = (front.HERE / "output.txt").read_text(encoding="utf-8").replace("┃", "│")  # the head has thicker lines
    (table,) = re.findall(r"```text\n(.+?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(table.splitlines()) == 7
    assert all(row in printed for row in table.splitlines())
