"""What transformers builds is kept, of a folder or of a shape: a tiny model takes longer to build than to use."""

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from truncate_kit.models import loading

LARGE = 12_000_000  # bytes, more than miniatures have; larger ones are read each time
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
    """Puts each tensor in its places."""

    def __init__(self, file: io.BytesIO, tensors: dict[int, Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, key: int) -> Tensor:
        return self._tensors[key]


def _copied(tensor: Tensor) -> Tensor:
    values = tensor.detach().clone()
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


class _Original:
    """A model that is copied, in a sixth of the time that `copy.deepcopy` takes."""

    def __init__(self, model: nn.Module) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(model)
        self._structure, self._tensors = file.getvalue(), pickler.tensors

    def copy(self) -> Any:
        return self._with({key: _copied(tensor) for key, tensor in self._tensors.items()})

    def _with(self, tensors: dict[int, Tensor]) -> Any:
        return _Unpickler(io.BytesIO(self._structure), tensors).load()


class _Shape(_Original):
    """A model without its weights."""

    def __init__(self, model: nn.Module, names: AbstractSet[str]) -> None:
        super().__init__(model)
        own = model.state_dict(keep_vars=True)
        self._weights = {name: (id(own[name]), isinstance(own[name], nn.Parameter)) for name in own.keys() & names}
        for key, _ in self._weights.values():
            self._tensors.pop(key, None)

    def of(self, weights: Mapping[str, Tensor]) -> Any:
        """With weights of these names, in the memory where they are."""
        own = {
            key: nn.Parameter(weights[name]) if learns else weights[name]
            for name, (key, learns) in self._weights.items()
        }
        return self._with({key: _copied(tensor) for key, tensor in self._tensors.items()} | own)


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


class _Shapes:
    """What models of weights that are there already are built from: each configuration and class once."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[str, _Shape] = OrderedDict()

    def model(self, kind: Any, weights: Mapping[str, Tensor], *, config: PretrainedConfig, **options: Any) -> Any:
        if any(weight.dtype != options.get("dtype") for weight in weights.values()):
            return _build(kind, None, config=config, state_dict=weights, **options)  # has them converted
        shapes = [(name, weight.shape) for name, weight in weights.items()]
        key = repr((kind, config.to_json_string(use_diff=False), shapes, sorted(options.items(), key=str)))
        if key not in self._shapes:
            with torch.random.fork_rng(devices=[]):
                built = _build(kind, None, config=config, state_dict=weights, **options)
            self._shapes[key] = _Shape(built, weights.keys())
            while len(self._shapes) > MOST:
                self._shapes.popitem(last=False)
        self._shapes.move_to_end(key)
        return self._shapes[key].of(weights)


_build: Any = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]  # a class method's


@contextmanager
def remembered_models() -> Iterator[None]:
    """Whatever this package checks in a folder and in its weights is checked each time."""
    shapes = _Shapes()

    def from_pretrained(kind: Any, folder: Any, *args: Any, **options: Any) -> Any:
        if folder is None and options.keys() == {"config", "state_dict", "attn_implementation", "dtype"}:
            return shapes.model(kind, options.pop("state_dict"), **options)
        return _build(kind, folder, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "AutoModel", _Kept())
        patch.setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
        yield
