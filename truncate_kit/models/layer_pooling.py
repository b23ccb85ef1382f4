"""Pooling of tokens, and over layers: the largest value or the mean of the pooled states of chosen layers.

This file stands alone on torch and safetensors: every saved model that pools so over layers carries a copy of it, which
sentence-transformers loads with `trust_remote_code=True`, without truncate-kit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

PoolingMode = Literal["mean", "cls", "max", "last"]
Over = Literal["max", "mean"]
NormKind = Literal["layer", "rms"]


def pool(hidden: Tensor, mask: Tensor, mode: PoolingMode) -> Tensor:
    """Pool token states (b, t, d) under an attention mask (b, t) of 0 and 1 into (b, d).

    mean: over real tokens; cls: the first real token; max: elementwise over real tokens; last: the last real token.
    Padding may stand on either side.
    """
    if mode == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
    if mode == "max":
        lowest = torch.finfo(hidden.dtype).min
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, lowest).amax(dim=1)
    # Comparing running counts, not argmax over positions: exports to ONNX without a special case.
    real = mask.to(torch.long)
    place = real.argmax(dim=1) if mode == "cls" else (real.cumsum(dim=1) * real).argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), place]


class RootMeanSquareNorm(nn.Module):
    """x / √(mean of x² + eps), times a weight: the norm of qwen2 and llama."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """(…, d) to (…, d)."""
        return self.weight * (states * torch.rsqrt(states.square().mean(dim=-1, keepdim=True) + self.eps))


class LayerPooling(nn.Module):
    """The elementwise maximum, or the mean, over chosen layers, each pooled over its tokens first.

    width: d. layers: rising; 0 = embeddings. over: what is taken over the layers. tokens: how the tokens of each layer
    are pooled. norm: of a model that ends in one, `layer` or `rms`; the module then has a copy of it, with eps and, if
    it has one, bias, and applies it to the layers below the last, which a transformer hands over without it.
    last: put the pooled state of the last layer before what is taken over the layers; a vector is then 2d wide.
    Raises ValueError for settings that make no sense.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: Sequence[int],
        over: Over = "max",
        tokens: PoolingMode = "mean",
        norm: NormKind | None = None,
        eps: float = 1e-5,
        bias: bool = True,
        last: bool = False,
    ) -> None:
        super().__init__()
        for what, value, known in (("over", over, Over), ("tokens", tokens, PoolingMode)):
            if value not in get_args(known):
                raise ValueError(f"{what} is {value!r}, not one of {', '.join(get_args(known))}")
        if norm is not None and norm not in get_args(NormKind):
            raise ValueError(f"norm is {norm!r}, not one of {', '.join(get_args(NormKind))}")
        self.layers = list(layers)
        whole = all(type(layer) is int and layer >= 0 for layer in self.layers)
        if not whole or not self.layers or self.layers != sorted(set(self.layers)):
            raise ValueError(f"layers are {layers!r}, not different numbers from 0 on that rise")
        self.over, self.tokens = over, tokens
        self.settings: dict[str, Any] = {"width": int(width), "layers": self.layers, "over": over, "tokens": tokens}
        if last:  # named only where it is so: settings of models without it stay what they were
            self.settings["last"] = True
        self.norm: nn.Module | None = None
        if norm is not None:
            self.settings |= {"norm": norm, "eps": float(eps), "bias": bool(bias)}
            self.norm = (
                nn.LayerNorm(width, eps=eps, bias=bias) if norm == "layer" else RootMeanSquareNorm(width, float(eps))
            )

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def word(self) -> str:
        """How a sentence vector is made, in a word."""
        return f"last-layer-{self.over}" if self.last_first else f"layer-{self.over}"

    @property
    def last_first(self) -> bool:
        """Whether the last layer's state comes before what is taken over the layers."""
        return bool(self.settings.get("last", False))

    @property
    def state_pooling(self) -> PoolingMode:
        """How the state of one layer is pooled."""
        return self.tokens

    def fits(self, width: int, depth: int) -> bool:
        """Whether a model of this width and depth has what is pooled."""
        return bool(self.settings["width"] == width and self.layers[-1] <= depth)

    def pool_layers(self, states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Sentence vectors (b, out) from the token states of all layers, (b, t, d) each, under a mask (b, t).

        Args:
            states: As a transformer hands them over, a final norm applied to the last one only.
            mask: (b, t).
        """
        pooled = []
        for layer in self.layers:
            state = states[layer]
            if self.norm is not None and layer < len(states) - 1:
                state = self.norm(state)
            pooled.append(pool(state, mask, self.tokens))
        together = torch.stack(pooled)
        over_layers = together.amax(dim=0) if self.over == "max" else together.mean(dim=0)
        if not self.last_first:
            return over_layers
        return torch.cat([pool(states[-1], mask, self.tokens), over_layers], dim=-1)

    # What sentence-transformers calls

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add `sentence_embedding` (b, d) to what a Transformer module gives."""
        layers = features.get("all_layer_embeddings")
        if layers is None:
            raise ValueError("The transformer does not hand over its layers: set output_hidden_states in config.json.")
        states = [*layers[:-1], features["token_embeddings"]]
        features["sentence_embedding"] = self.pool_layers(states, features["attention_mask"])
        return features

    def get_embedding_dimension(self) -> int:
        """d, or 2d with the last layer's state."""
        width: int = self.settings["width"]
        return 2 * width if self.last_first else width

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name

    def save(self, output_path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write config.json and, where there is a norm, model.safetensors."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
        weights = {name: value.detach().contiguous().cpu() for name, value in self.state_dict().items()}
        if weights:
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    @staticmethod
    def load(input_path: str | Path) -> "LayerPooling":
        """Read what `save` wrote."""
        folder = Path(input_path)
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        module = LayerPooling(settings.pop("width"), **settings)
        if module.norm is not None:
            module.load_state_dict(load_file(folder / "model.safetensors"))
        return module
