"""What transformers builds of a folder is kept: a tiny model takes longer to build than to use."""

import copy
import hashlib
import re
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
READ = re.compile(r"(config|generation_config|adapter_config)\.json|(model|pytorch_model).*\.(json|safetensors|bin)")


class _Kept:
    """Stands for `AutoModel`: the same files are read once, in whatever folder; every caller has a copy of its own."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, Any] = {}
        self._digests: dict[object, bytes] = {}

    def from_config(self, config: PretrainedConfig) -> Any:
        if torch.get_default_device().type != "meta":
            return AutoModel.from_config(config)
        key = f"{type(config)} {config.to_json_string(use_diff=False)}"
        if key not in self._sizes:
            self._sizes[key] = AutoModel.from_config(config)
        return self._sizes[key]  # its weights are counted, and nobody has them

    def _digest(self, file: Path) -> bytes:
        at = file.stat()
        state = (str(file), at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        if state not in self._digests:
            self._digests[state] = hashlib.sha256(file.read_bytes()).digest()
        return self._digests[state]

    def from_pretrained(self, folder: Path, *, config: PretrainedConfig, **options: Any) -> Any:
        files = [file for file in sorted(folder.iterdir()) if READ.fullmatch(file.name)]
        if sum(file.stat().st_size for file in files) > LARGE:
            return AutoModel.from_pretrained(folder, config=config, **options)
        state = [(file.name, self._digest(file)) for file in files]
        key = repr((state, type(config), config.to_json_string(use_diff=False), sorted(options.items(), key=str)))
        if key not in self._models:
            with torch.random.fork_rng(devices=[]):  # draws weights that nobody keeps, the first time
                self._models[key] = AutoModel.from_pretrained(folder, config=config, **options)
            while len(self._models) > MOST:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        model, report = copy.deepcopy(self._models[key])  # with what it says of loading
        model.name_or_path = model.config.name_or_path = str(folder)
        return model, report


@contextmanager
def remembered_models() -> Iterator[None]:
    """Whatever this package checks in a folder and in its weights is checked each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "AutoModel", _Kept())
        yield
