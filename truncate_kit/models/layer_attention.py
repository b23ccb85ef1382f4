"""Layer-wise attention pooling: one sentence vector from the states of all layers.

This file stands alone on torch and safetensors: every saved model that pools so carries a copy of it, which
sentence-transformers loads with `trust_remote_code=True`, without truncate-kit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

Over = Literal["both", "cls", "mean"]
LOWEST_SLOPE, HIGHEST_SLOPE = 1 / 8, 1 / 3  # of RReLU below 0: drawn in training, their mean otherwise


class LayerAttentionPooling(nn.Module):
    """Attention over the states of all layers, embeddings included, and a tanh layer that brings it to width d.

    As the authors of "Don't Judge a Language Model by Its Last Layer" (COLING 2022) run it: query, key and value are
    linear maps without bias under RReLU; the scores q_i · k_j of every layer i with every layer j are divided by the
    number of layers N and softmaxed over j; the values under these weights are averaged over i.

    As equations 1 to 3 of the paper print it (`literal`): α_i = (W_q h_i^c · W_k h_i^a) / Σ_j (W_q h_j^c · W_k h_j^a),
    query and key of the same layer, so one weight for each layer; h^L = Σ_j α_j W_v h_j^a. No RReLU, no exponential:
    weights may be negative, and grow without bound where the scores of a text add up to almost nothing.

    Either way the last CLS state is put before the result (equation 4); d or 2d → d, tanh, is the MLP of equation 5.

    Args:
        width: d.
        over: Whose states attend: `both` (queries from CLS, keys and values from the masked means), `cls` or `mean`.
        last_cls: Put the CLS state of the last layer before the attended states.
        literal: The equations as printed instead of the authors' code.
        token: The token that sums a text up, `cls` (the first one) or, for causal models, `last`.
        mlp: Whether there is a tanh layer; without it a vector is the attended state, with `last_cls` 2d wide.
    """

    word = "layer-attention"

    def __init__(
        self,
        width: int,
        *,
        over: Over = "both",
        last_cls: bool = True,
        literal: bool = False,
        token: Literal["cls", "last"] = "cls",
        mlp: bool = True,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "width": width,
            "over": over,
            "last_cls": last_cls,
            "literal": literal,
            "token": token,
        }
        if not mlp:  # named only where it is left out: settings of models with it stay what they were
            self.settings["mlp"] = False
        self.over, self.last_cls, self.literal, self.token = over, last_cls, literal, token
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.dense = nn.Linear(2 * width if last_cls else width, width) if mlp else None
        for linear in (self.query, self.key, self.value, self.dense):
            if linear is not None:
                nn.init.normal_(linear.weight, std=0.02)
        if self.dense is not None:
            nn.init.zeros_(self.dense.bias)

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def state_pooling(self) -> Literal["cls", "last"]:
        """How the state of one layer is pooled where a single one is asked for."""
        return self.token

    def fits(self, width: int, depth: int) -> bool:
        """Whether a model of this width has what is pooled, at whatever depth."""
        return bool(self.settings["width"] == width)

    def summaries_and_means(self, states: Sequence[Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        """CLS states (the last token's in a causal model) and mean states of all layers, (b, N, d) each.

        Args:
            states: Of the tokens of each layer, (b, t, d), as a transformer hands them over: no final norm is applied
                below the last layer.
            mask: (b, t), 1 for real tokens; padding may stand on either side.
        """
        real = mask.to(torch.long)
        place = real.argmax(dim=1) if self.token == "cls" else (real.cumsum(dim=1) * real).argmax(dim=1)
        rows = torch.arange(mask.shape[0], device=mask.device)
        weights = mask.unsqueeze(-1).to(states[0].dtype)
        count = weights.sum(dim=1)
        return (
            torch.stack([state[rows, place] for state in states], dim=1),
            torch.stack([(state * weights).sum(dim=1) / count for state in states], dim=1),
        )

    def layer_weights(self, summaries: Tensor, means: Tensor) -> Tensor:
        """How much of each layer's value goes into the vector: (b, N), rows sum to 1; see the class for the formulas.

        Args:
            summaries: CLS states of all layers, (b, N, d).
            means: Their mean states, (b, N, d).
        """
        asking = means if self.over == "mean" else summaries
        asked = summaries if self.over == "cls" else means
        if self.literal:
            scores: Tensor = (self.query(asking) * self.key(asked)).sum(dim=-1)
            return scores / scores.sum(dim=-1, keepdim=True)
        queries, keys = self._slope(self.query(asking)), self._slope(self.key(asked))
        scores = queries @ keys.transpose(1, 2) / keys.shape[1]
        return scores.softmax(dim=-1).mean(dim=1)

    def attend(self, summaries: Tensor, means: Tensor) -> Tensor:
        """Sentence vectors (b, out) from the CLS states and the mean states of all layers, (b, N, d) each."""
        weights = self.layer_weights(summaries, means)
        values = self.value(summaries if self.over == "cls" else means)
        if not self.literal:
            values = self._slope(values)
        # The mean over queries of weighted sums is the weighted sum under the mean weights.
        pooled: Tensor = (weights.unsqueeze(-1) * values).sum(dim=1)
        if self.last_cls:
            pooled = torch.cat([summaries[:, -1], pooled], dim=-1)
        if self.dense is None:
            return pooled
        vectors: Tensor = self.dense(pooled).tanh()
        return vectors

    def pool_layers(self, states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Sentence vectors (b, out) from the token states of all layers; see `summaries_and_means`."""
        return self.attend(*self.summaries_and_means(states, mask))

    def _slope(self, values: Tensor) -> Tensor:
        """RReLU; written out where nothing is drawn, because exporters know only the leaky form."""
        if self.training:
            return functional.rrelu(values, LOWEST_SLOPE, HIGHEST_SLOPE, training=True)
        return functional.leaky_relu(values, (LOWEST_SLOPE + HIGHEST_SLOPE) / 2)

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
        """d, or 2d without a tanh layer and with the last CLS."""
        width: int = self.settings["width"]
        return 2 * width if self.dense is None and self.last_cls else width

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name

    def save(self, output_path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write config.json and model.safetensors."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
        weights = {name: value.detach().contiguous().cpu() for name, value in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    @staticmethod
    def load(input_path: str | Path) -> "LayerAttentionPooling":
        """Read what `save` wrote."""
        folder = Path(input_path)
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        module = LayerAttentionPooling(settings.pop("width"), **settings)
        module.load_state_dict(load_file(folder / "model.safetensors"))
        return module
