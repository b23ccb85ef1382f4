"""What transformers builds of a folder is kept: a tiny model takes longer to build than to use."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, PretrainedConfig

from truncate_kit.models import loading

LARGE = 12_000_000  # bytes, more than miniatures have; larger ones are read each time
MOST = 64  # models that are kept


class _Kept:
    """Stands for `AutoModel`: a folder is read once, until a file in it changes; every caller has a copy of its own."""

    from_config = staticmethod(AutoModel.from_config)

    def __init__(self) -> None:
        self._models: OrderedDict[str, Any] = OrderedDict()

    def from_pretrained(self, folder: Path, *, config: PretrainedConfig, **options: Any) -> Any:
        files = [(file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file()]
        if sum(at.st_size for _, at in files) > LARGE:
            return AutoModel.from_pretrained(folder, config=config, **options)
        state = [(str(file), at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for file, at in files]
        key = repr((state, type(config), config.to_json_string(use_diff=False), sorted(options.items(), key=str)))
        if key not in self._models:
            with torch.random.fork_rng(devices=[]):  # draws weights that nobody keeps, the first time
                self._models[key] = AutoModel.from_pretrained(folder, config=config, **options)
            while len(self._models) > MOST:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return copy.deepcopy(self._models[key])


@contextmanager
def remembered_models() -> Iterator[None]:
    """Whatever this package checks in a folder and in its weights is checked each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "AutoModel", _Kept())
        yield
