"""The README shows what the demo printed, and its figure is drawn from that."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.demo import front

ROOT = Path(front.__file__).parents[2]


def test_the_front_page_has_rows_of_the_demo():
    printed = (front.HERE / "output.txt").read_text(encoding="utf-8").replace("┃", "│")  # the head has thicker lines
    (table,) = re.findall(r"```text\n(.+?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(table.splitlines()) == 7
    assert all(row in printed for row in table.splitlines())


def test_the_figure_reads_what_is_printed():
    rows = front.timed((front.HERE / "output.txt").read_text(encoding="utf-8"))
    assert {(model, runtime) for model, runtime, _, _ in rows} == {
        (model, runtime) for model in ("lean", "full") for runtime in front.MARKERS
    }
    axes = Figure().subplots()
    front.draw_speed(axes)
    assert [text.get_text() for text in axes.texts] == ["lean: 3 blocks", "full: 8 blocks"]
