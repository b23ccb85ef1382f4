"""Running single blocks of an encoder, in any choice and order, on token states that are kept between them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.models.encoder import Batch, Encoder

Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BlockRunner:
    """The blocks of an encoder over one batch, each with the masks and positions that the whole model hands to it.

    What subsets of blocks have in common is computed once: `run(3, run(1, embedded))` is the beginning of all that
    keep blocks 1 and 3 first. Equals `keep(encoder, blocks)` over the same batch.
    """

    encoder: Encoder
    embedded: Tensor  # token states before block 1, (b, t, d)
    mask: Tensor
    calls: tuple[Call, ...]
    first_only: Call | None

    @classmethod
    @torch.inference_mode()
    def of(cls, encoder: Encoder, batch: Batch) -> "BlockRunner":
        """Run the whole model once over `batch`, and note how it calls each block."""
        calls: list[Call] = []
        extra: list[Call] = []
        family = encoder.family
        items = set(encoder.backbone.get_submodule(family.blocks).children())
        only_first = _submodule(encoder.backbone, family.only_first)
        handles = [item.register_forward_pre_hook(_noting(calls), with_kwargs=True) for item in items]
        if only_first is not None:
            handles.append(only_first.register_forward_pre_hook(_noting(extra), with_kwargs=True))
        try:
            encoder.token_states(batch["input_ids"], batch["attention_mask"])
        finally:
            for handle in handles:
                handle.remove()
        embedded: Tensor = _state(calls[0])
        without = tuple(_without_state(call) for call in calls)
        return cls(encoder, embedded, batch["attention_mask"], without, extra[0] if extra else None)

    @torch.inference_mode()
    def run(self, block: int, states: Tensor) -> Tensor:
        """Token states (b, t, d) behind `block` (from 1 on), from those before it."""
        output = _called(self.calls[block - 1], states)
        if block == 1 and self.first_only is not None:
            module, args, kwargs = self.first_only  # takes what came into block 1 and what left it
            output = module(args[0], output, *args[2:], **kwargs)
        return output

    @torch.inference_mode()
    def vectors(self, states: Tensor) -> Tensor:
        """Sentence vectors (b, out) of the token states behind the last kept block."""
        norm = self.encoder.final_norm
        return self.encoder.from_states(states if norm is None else norm(states), self.mask)


def _noting(calls: list[Call]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((module, args, kwargs))

    return hook


def _state(call: Call) -> Any:
    _, args, kwargs = call
    return args[0] if args else kwargs["hidden_states"]


def _without_state(call: Call) -> Call:
    """The call without what went into the block, which another state replaces: kept, it would be one for each block."""
    module, args, kwargs = call
    if args:
        return module, (None, *args[1:]), kwargs
    return module, args, {**kwargs, "hidden_states": None}


def _called(call: Call, states: Tensor) -> Tensor:
    module, args, kwargs = call
    output = module(states, *args[1:], **kwargs) if args else module(**{**kwargs, "hidden_states": states})
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def _submodule(backbone: nn.Module, path: str | None) -> nn.Module | None:
    if path is None:
        return None
    parent, _, name = path.rpartition(".")
    found: nn.Module | None = getattr(backbone.get_submodule(parent), name, None)
    return found
