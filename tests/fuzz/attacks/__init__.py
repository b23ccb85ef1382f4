"""Tables of attacks by what they attack."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.attacks import files, names, options, surroundings
from tests.fuzz.attacks.attack import Attack

TABLES: dict[str, Callable[[Path], Iterator[Attack]]] = {
    "options": options.attacks,
    "surroundings": surroundings.attacks,
    "files": files.attacks,
    "names": names.attacks,
}
