"""What transformers builds of a folder is kept: a tiny model takes longer to build than most tests have it for."""

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig

from truncate_kit.encoders import weights

LARGE = 10_000_000  # bytes of weights; larger ones are read each time
MOST = 64  # models that are kept


def _state(folder: Path) -> tuple[list[tuple[Any, ...]], int]:
    """What tells files that were written anew from those that were there, and the bytes of them all."""
    files = [(file, file.stat()) for file in sorted(folder.iterdir()) if file.is_file()]
    found = [(str(file), at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for file, at in files]
    return found, sum(at.st_size for _, at in files)


class _Pickler(pickle.Pickler):
    """Leaves out tensors, which it gathers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[int, Tensor] = {}

    def persistent_id(self, item: object) -> int | None:
        if not isinstance(item, Tensor):
            return None
        self.tensors[id(item)] = item
        return id(item)


class _Unpickler(pickle.Unpickler):
    """Puts a copy of each tensor in its places."""

    def __init__(self, file: io.BytesIO, tensors: dict[int, Tensor]) -> None:
        super().__init__(file)
        self._copies = {key: self._copied(tensor) for key, tensor in tensors.items()}

    @staticmethod
    def _copied(tensor: Tensor) -> Tensor:
        values = tensor.detach().clone()
        return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values

    def persistent_load(self, key: int) -> Tensor:
        return self._copies[key]


class _Original:
    """A model that is copied, in a sixth of the time that `copy.deepcopy` takes."""

    def __init__(self, model: nn.Module) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(model)
        self._structure, self._tensors = file.getvalue(), pickler.tensors

    def copy(self) -> Any:
        return _Unpickler(io.BytesIO(self._structure), self._tensors).load()


class _Kept:
    """`AutoModel` of which each folder is read once, until a file in it changes; every caller has a copy of its own."""

    from_config = staticmethod(AutoModel.from_config)

    def __init__(self) -> None:
        self._models: OrderedDict[str, _Original] = OrderedDict()

    def from_pretrained(self, folder: Path, *, config: PretrainedConfig, **options: Any) -> Any:
        state, size = _state(folder)
        if size > LARGE:
            return AutoModel.from_pretrained(folder, config=config, **options)
        key = repr((state, type(config), config.to_json_string(use_diff=False), sorted(options.items(), key=str)))
        if key not in self._models:
            with torch.random.fork_rng(devices=[]):  # draws weights that nobody keeps, the first time
                self._models[key] = _Original(AutoModel.from_pretrained(folder, config=config, **options))
            while len(self._models) > MOST:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key].copy()


@contextmanager
def remembered_models() -> Iterator[None]:
    """Whatever this package checks in a folder and in its weights is checked each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "AutoModel", _Kept())
        yield
