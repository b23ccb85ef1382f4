"""Size, requests and time to the first drawing of pages in a headless Chromium, beside a page of one line.

python -m benchmarks.page.run exported/demo/report.html exported/demo/distilled/report.html
"""

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import machine, new_parser, print_table
from tests.support.browser import Tab, a_browser
from truncate_kit.files import write_json

FLOOR = "a page of one line"
PAINTED = (
    "new Promise(done => new PerformanceObserver(list => list.getEntriesByName('first-contentful-paint')"
    ".forEach(one => done(one.startTime))).observe({type: 'paint', buffered: true}))"
)
DRAWN = (  # two frames after the last drawing is in the document
    "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
)
PARSER = new_parser(__doc__)
PARSER.add_argument("pages", type=Path, nargs="+")
PARSER.add_argument("--rounds", type=int, default=10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Open each page in turn and write `results.json`."""
    options = PARSER.parse_args(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        floor = Path(home) / "floor.html"
        floor.write_text("<!DOCTYPE html><title>one line</title><p>One line.", encoding="utf-8")
        pages = {FLOOR: floor} | {"/".join(path.parts[-2:]): path for path in options.pages}
        sizes = {name: path.stat().st_size for name, path in pages.items()}
        with a_browser(Path(home) / "profile") as browser:
            tab = Tab(browser)  # one: what stands behind another is not painted
            found = {name: {"paint": [], "drawn": [], "requests": 0, "drawings": 0} for name in pages}
            for _ in range(options.rounds + 1):
                for name, path in pages.items():
                    tab.open(path)
                    drawn, painted = tab.evaluate(DRAWN), tab.evaluate(PAINTED)
                    found[name]["drawn"].append(drawn)
                    found[name]["paint"].append(painted)
                    found[name]["requests"] = sum(line.startswith("requested") for line in tab.problems)
                    found[name]["drawings"] = tab.evaluate("document.querySelectorAll('figure svg').length")
    rows = {
        name: {
            "bytes": sizes[name],
            "requests": found[name]["requests"],
            "drawings": found[name]["drawings"],
            # The first round warms the browser up.
            "first contentful paint, ms": round(statistics.median(found[name]["paint"][1:])),
            "all drawn, ms": round(statistics.median(found[name]["drawn"][1:])),
        }
        for name, path in pages.items()
    }
    kept = {"machine": machine() | {"load": os.getloadavg()[0]}, "rounds": options.rounds, "pages": rows}
    write_json(Path(__file__).with_name("results.json"), kept)
    print_table(("page", *next(iter(rows.values()))), [(name, *row.values()) for name, row in rows.items()])
    print(json.dumps(kept["machine"]))


if __name__ == "__main__":
    main()
