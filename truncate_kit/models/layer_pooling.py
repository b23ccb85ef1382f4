"""Pool the tokens of one layer, and pool over layers. This file imports only torch and safetensors.

Models that pool over layers contain a copy of this file for `trust_remote_code=True`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

PoolingMode = Literal["mean", "cls", "max", "last", "concat"]  # concat: CLS, then mean, 2d wide
Over = Literal["max", "mean"]
NormKind = Literal["layer", "rms"]
AttentionOver = Literal["both", "cls", "mean"]
LOWEST_SLOPE, HIGHEST_SLOPE = 1 / 8, 1 / 3  # slopes of RReLU for negative inputs


def pool(hidden: Tensor, mask: Tensor, mode: PoolingMode) -> Tensor:
    """Pool token states (b, t, d) into (b, d), or (b, 2d) for `concat`; mask (b, t): 0 for padding on either side."""
    if mode == "concat":
        return torch.cat([pool(hidden, mask, "cls"), pool(hidden, mask, "mean")], dim=-1)
    if mode == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
    if mode == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(hidden.dtype).min).amax(dim=1)
    rows, real = torch.arange(hidden.shape[0], device=hidden.device), mask.to(torch.long)
    # A cumulative sum finds the last token, and exports to ONNX.
    return hidden[rows, (real.cumsum(dim=1) * real).argmax(dim=1) if mode == "last" else real.argmax(dim=1)]


class LayerPooler(nn.Module):
    """Base class of modules that pool over layers, also usable in sentence-transformers.

    Attributes:
        settings: Arguments of the class.
        word: Name of the pooling.
        state_pooling: Mode that pools the tokens of a single layer.
        doubled: Whether vectors are 2d wide and begin with the last layer.
    """

    settings: dict[str, Any]
    word: str
    state_pooling: PoolingMode
    doubled: bool

    def pool_layers(self, states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Return vectors (b, out) pooled from the token states of all layers.

        states: (b, t, d) each; only the last has the final norm applied, as in transformers. mask: (b, t).
        """
        raise NotImplementedError

    def fits(self, width: int, depth: int) -> bool:
        """Return whether a model of this size has the pooled layers."""
        return bool(self.settings["width"] == width and max(self.settings.get("layers", [0])) <= depth)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add `sentence_embedding` (b, out) to the features."""
        layers = features.get("all_layer_embeddings")
        if layers is None:
            raise ValueError("The transformer returns no hidden states: set output_hidden_states in its config.json.")
        states = [*layers[:-1], features["token_embeddings"]]
        features["sentence_embedding"] = self.pool_layers(states, features["attention_mask"])
        return features

    def get_embedding_dimension(self) -> int:
        """Return the size of a vector: d, or 2d if doubled."""
        width: int = self.settings["width"]
        return 2 * width if self.doubled else width

    get_sentence_embedding_dimension = get_embedding_dimension  # older name

    def save(self, output_path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write config.json, and weights if there are any."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
        weights = {name: value.detach().contiguous().cpu() for name, value in self.state_dict().items()}
        if weights:
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def load(cls, input_path: str | Path) -> Self:
        """Load the module from the files that `save` writes."""
        folder = Path(input_path)
        module = cls(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        if module.state_dict():
            module.load_state_dict(load_file(folder / "model.safetensors"))
        return module


class LayerPooling(LayerPooler):
    """Pool the tokens of each layer, then take the elementwise maximum or mean over the layers.

    Args:
        width: State size d.
        layers: In rising order; 0 = embeddings.
        tokens: Pooling of the tokens of each layer.
        norm: Type of the model's final norm, `layer` or `rms`; a copy is applied to each layer below the last.
        last: Prepend the last layer's pooled state; vectors are then 2d wide.
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
        self.layers = list(layers)
        self.over, self.tokens = over, tokens
        self.settings = {"width": width, "layers": self.layers, "over": over, "tokens": tokens, "last": last}
        self.word = f"last-layer-{over}" if last else f"layer-{over}"
        self.state_pooling, self.doubled = tokens, last
        self.norm: nn.Module | None = None
        if norm is not None:
            self.settings |= {"norm": norm, "eps": eps, "bias": bias}
            self.norm = nn.LayerNorm(width, eps=eps, bias=bias) if norm == "layer" else nn.RMSNorm(width, eps=eps)

    def pool_layers(self, states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """See the base class."""
        pooled = []
        for layer in self.layers:
            state = states[layer]
            if self.norm is not None and layer < len(states) - 1:
                state = self.norm(state)
            pooled.append(pool(state, mask, self.tokens))
        together = torch.stack(pooled)
        over_layers = together.amax(dim=0) if self.over == "max" else together.mean(dim=0)
        if not self.doubled:
            return over_layers
        return torch.cat([pool(states[-1], mask, self.tokens), over_layers], dim=-1)


class LayerAttentionPooling(LayerPooler):
    """Attend over the pooled states of all N layers, embeddings included, then project to width d by a tanh layer.

    "Don't Judge a Language Model by Its Last Layer" (COLING 2022), as in its code: query, key and value are linear
    layers without bias, then RReLU. Scores q_i · k_j / N pass a softmax over j; weighted values are averaged over i.

    `literal` follows equations 1 to 3 as printed: α_i = (W_q h_i^c · W_k h_i^a) / Σ_j (W_q h_j^c · W_k h_j^a),
    h^L = Σ_j α_j W_v h_j^a. These weights may be negative and unbounded.

    Args:
        width: State size d.
        over: `both` (queries from CLS, keys and values from means), `cls` or `mean`.
        last_cls: Prepend the CLS state of the last layer (equation 4).
        token: Token used as CLS: `cls`, or `last` for causal models.
        mlp: Add the tanh layer (equation 5).
    """

    word = "layer-attention"

    def __init__(
        self,
        width: int,
        *,
        over: AttentionOver = "both",
        last_cls: bool = True,
        literal: bool = False,
        token: Literal["cls", "last"] = "cls",
        mlp: bool = True,
    ) -> None:
        super().__init__()
        self.settings = {"width": width, "over": over, "last_cls": last_cls, "literal": literal, "token": token}
        self.settings["mlp"] = mlp
        self.over, self.last_cls, self.literal = over, last_cls, literal
        self.state_pooling, self.doubled = token, last_cls and not mlp
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.dense = nn.Linear(2 * width if last_cls else width, width) if mlp else None
        for linear in (self.query, self.key, self.value, self.dense):
            if linear is not None:
                nn.init.normal_(linear.weight, std=0.02)
        if self.dense is not None:
            nn.init.zeros_(self.dense.bias)

    def summaries_and_means(self, states: Sequence[Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the CLS (or last-token) and mean states of all layers, (b, N, d) each."""
        modes: tuple[PoolingMode, PoolingMode] = self.state_pooling, "mean"
        summaries, means = (torch.stack([pool(state, mask, mode) for state in states], dim=1) for mode in modes)
        return summaries, means

    def layer_weights(self, summaries: Tensor, means: Tensor) -> Tensor:
        """Return the weight of each layer, (b, N); each row sums to 1."""
        query_states = means if self.over == "mean" else summaries
        key_states = summaries if self.over == "cls" else means
        if self.literal:
            scores: Tensor = (self.query(query_states) * self.key(key_states)).sum(dim=-1)
            return scores / scores.sum(dim=-1, keepdim=True)
        queries, keys = self._rectified(self.query(query_states)), self._rectified(self.key(key_states))
        return (queries @ keys.transpose(1, 2) / keys.shape[1]).softmax(dim=-1).mean(dim=1)

    def attend(self, summaries: Tensor, means: Tensor) -> Tensor:
        """Return vectors (b, out) from the results of `summaries_and_means`."""
        weights = self.layer_weights(summaries, means)
        values = self.value(summaries if self.over == "cls" else means)
        if not self.literal:
            values = self._rectified(values)
        # The mean of weighted sums equals the sum with mean weights.
        pooled: Tensor = (weights.unsqueeze(-1) * values).sum(dim=1)
        if self.last_cls:
            pooled = torch.cat([summaries[:, -1], pooled], dim=-1)
        return pooled if self.dense is None else torch.tanh(self.dense(pooled))

    def pool_layers(self, states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """See the base class."""
        return self.attend(*self.summaries_and_means(states, mask))

    def _rectified(self, values: Tensor) -> Tensor:
        """Apply RReLU; in evaluation LeakyReLU, which exporters support."""
        if self.training:
            return functional.rrelu(values, LOWEST_SLOPE, HIGHEST_SLOPE, training=True)
        return functional.leaky_relu(values, (LOWEST_SLOPE + HIGHEST_SLOPE) / 2)
