"""Names and places of files that nobody gives them: not UTF-8, control characters, links, deep and many folders."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attacks.attack import Attack, Change
from tests.fuzz.attacks.inputs import VALID, words_of

_NAMES = {
    "not UTF-8": os.fsdecode(b"\xff\xfe"),
    "escapes": "\x1b[31mred\x07",
    "a line break": "a\nError: b\nHint: c",
    "right to left": "\u202eexe.gpj",
    "HTML": "<img src=x onerror=alert(1)>",
    "a formula": "=HYPERLINK(1)",
    "200 letters": "é" * 100,
    "an option": "--out",
    "white space": " \u2028 ",
}


_MOVED = ("m", "p.csv", "t.txt", "t.jsonl", "s.toml", "r", "done")


def _in_working_folder(name: str) -> str:
    """Python that moves the inputs into a folder of this name and works there."""
    moved = f"[shutil.move(part, {name!r}) for part in {_MOVED!r}]"
    return f"import shutil; os.mkdir({name!r}); {moved}; os.chdir({name!r})"


def _also(name: str) -> Change:
    """A model, a result and a run of such names in the workspace."""

    def change(place: Path) -> None:
        shutil.copytree(place / "m", place / "done" / name)
        (place / "done" / f"{name}.json").write_text("{}")
        (place / "done/trials" / name).mkdir()
        (place / "done/trials" / name / f"{name}.checkpoint").write_text("x")

    return change


def _splits(name: str) -> Change:
    def change(place: Path) -> None:
        (place / "data").mkdir()
        shutil.copy(place / "p.csv", place / "data/test.csv")
        shutil.copy(place / "p.csv", place / f"data/{name}.csv")

    return change


def _nested(place: Path) -> None:
    folder = place / "done"
    for _ in range(400):
        folder = folder / "w"
        folder.mkdir()
        shutil.copy(place / "done/workspace.json", folder / "workspace.json")


def _linked(target: str) -> Change:
    def change(place: Path) -> None:
        (place / "w").mkdir()
        for name in ("lean", "full", "trials", "report.html", "workspace.json", "sweep.json"):
            (place / "w" / name).symlink_to(place / target)

    return change


def _many(place: Path) -> None:
    for number in range(2_000):
        (place / f"done/trials/{number}").mkdir()


def attacks(home: Path) -> Iterator[Attack]:
    """Each with one odd name or place."""
    on_workspace = ("status done", "status done --json", "status done --clean", "report done --out report.html")
    for kind, name in _NAMES.items():
        for command in VALID:
            if command not in ("bench", "doctor"):
                yield Attack(
                    name=f"{command} in a folder named by {kind}",
                    words=words_of(command),
                    before=_in_working_folder(name),
                )
        for words in on_workspace:
            yield Attack(name=f"{words} with names of {kind}", words=tuple(words.split()), change=_also(name))
        for words in (
            "evaluate m --data data --workspace w",
            "finetune m --data data --scale 0,5 --layer 1 --seeds 1 --epochs 1 --workspace w",
        ):
            yield Attack(
                name=f"{words[:20]} of a split named by {kind}", words=tuple(words.split()), change=_splits(name)
            )
    for words in on_workspace:
        yield Attack(name=f"{words}, 400 workspaces one in the other", words=tuple(words.split()), change=_nested)
        yield Attack(name=f"{words}, 2,000 runs", words=tuple(words.split()), change=_many)
    for target in ("m", "p.csv", "nowhere", "w", "../outside"):
        for command in ("finetune", "cut", "distill", "analyze", "combine", "freeze", "contrast", "export", "evaluate"):
            yield Attack(
                name=f"{command}, a workspace of links to {target}", words=words_of(command), change=_linked(target)
            )
