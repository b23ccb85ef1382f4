"""The encoder that a contrastive run trains, with and without its pooler."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.methods.contrast.settings import MEANS, ContrastiveSettings, LayerWeights
from truncate_kit.models.encoder import Encoder, evaluating
from truncate_kit.models.layer_pooling import ConcatPooling, LayerAttentionPooling, LayerPooling
from truncate_kit.models.pipeline import Dense, Normalize
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import Evaluator, Ids
from truncate_kit.training.settings import OBJECTIVES


def poolable_encoder(encoder: Encoder, settings: ContrastiveSettings, *, seed: int) -> Encoder:
    """Cut the encoder at the layer of `settings`, under a fresh pooler drawn from `seed`. Raises `UsageError`."""
    cut = truncate(encoder, encoder.depth if settings.layer is None else settings.layer)
    _check_suits(cut, settings)
    cut.heads = None  # they would take the pooler's place
    cut.pool_with(None)
    token: Literal["cls", "last"] = "last" if cut.family.decoder else "cls"  # the one that has seen the whole text
    cut.pooling = "mean" if settings.pooling in MEANS else token
    torch.manual_seed(seed)
    width, wide = cut.width, 2 if settings.pooling in ("concat", "mean-first-last") else 1
    if settings.pooling == "layer-attention":
        over, last_cls, literal, mlp = settings.over, settings.last_cls, settings.literal, settings.mlp
        cut.pool_with(LayerAttentionPooling(width, over=over, last_cls=last_cls, literal=literal, token=token, mlp=mlp))
    elif settings.pooling == "first-last":
        cut.combine_layers((0, cut.depth))
    elif settings.pooling == "concat":
        cut.pool_with(ConcatPooling())
    elif settings.pooling == "mean-first-last":
        cut.pool_with(LayerPooling(width, layers=(0, cut.depth), over="mean", last=True))
    # A final Normalize is kept; what else followed pooling was trained for another one.
    tail = _normalize(encoder)
    if settings.mlp and settings.pooling != "layer-attention":  # which has its MLP inside
        dense = Dense(wide * width, width, bias=True, activation="Tanh")
        nn.init.normal_(dense.linear.weight, std=0.02)  # as the transformer's own layers begin
        nn.init.zeros_(dense.linear.bias)
        tail.insert(0, dense)
    cut.tail = nn.ModuleList(tail)
    _set_dropout(cut, settings)
    return cut.to(encoder.device)


def _check_suits(encoder: Encoder, settings: ContrastiveSettings) -> None:
    family, hint = encoder.family, "Use mean or layer-attention as `pooling`."
    if encoder.depth == 0 and settings.pooling != "mean":
        raise UsageError(
            f"At layer 0 every text has the same CLS state, so {settings.pooling} pooling has nothing to learn from.",
            hint='Use a `layer` from 1 on, or `pooling="mean"`.',
        )
    if settings.pooling in ("first-last", "mean-first-last") and family.final_norm is not None:
        raise UsageError(f"A {family.name} model ends in a norm that its embeddings do not go through.", hint=hint)
    if settings.pooling == "concat" and family.decoder:
        problem = f"The first token of a {family.name} model sees no other, so it is no CLS to put before the mean."
        raise UsageError(problem, hint=hint)


def _set_dropout(encoder: Encoder, settings: ContrastiveSettings) -> None:
    """Drop the share of `settings` in training, in place, wherever the backbone can.

    What a class builds only where its configuration drops something, as ModernBERT's after attention, is not added.
    Raises `UsageError` where an objective needs that some units are dropped and none are.
    """
    modules: list[Any] = list(encoder.backbone.modules())
    places = [(module, "p") for module in modules if isinstance(module, nn.Dropout)]
    name = "attention_dropout"
    places += [(module, name) for module in modules if isinstance(getattr(module, name, None), float)]
    for module, field in places if settings.dropout is not None else ():
        setattr(module, field, settings.dropout)
    if OBJECTIVES[settings.objective].data == "texts" and not any(getattr(*place) for place in places):
        raise UsageError(
            f"{encoder.name} drops no units in training, so that both copies of a text are the same.",
            hint="Use `dropout=0.1`."
            if settings.dropout is None
            else "Use another `objective`, or more of its layers.",
        )


def _normalize(encoder: Encoder) -> list[nn.Module]:
    """Return the final Normalize, where the encoder ends in one."""
    return [Normalize()] if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize) else []


def remove_pooler(encoder: Encoder) -> Encoder:
    """Take off what was trained beside the blocks, in place, with what only it could put together.

    Attention and concatenations leave the state that comes first in them: the top CLS (a decoder's last token), or the
    top mean. A single state stays what it is, without the tanh layer.
    """
    if encoder.pooler is not None:
        encoder.pool_with(None)  # `pooling` is how the pooler read a single layer
    encoder.tail = nn.ModuleList(_normalize(encoder))
    return encoder


class BareEvaluator:
    """Scores an encoder as it will be without its pooler, and leaves it as it was."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def texts(self) -> Sequence[Ids] | None:
        """Return those of the inner evaluator."""
        return self._evaluator.texts()

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the inner evaluator's scores of the encoder without its pooler."""
        pooler, tail = encoder.pooler, encoder.tail
        try:
            return self._evaluator.score(remove_pooler(encoder))
        finally:
            encoder.tail = tail
            if pooler is not None:
                encoder.pool_with(pooler)


_BATCH = 32


@torch.inference_mode()
def layer_weights(encoder: Encoder, texts: Sequence[str]) -> LayerWeights:
    """Return the attention of each text's pooling over the layers, averaged over its queries.

    Raises `UsageError` for an encoder without layer-wise attention, `DataError` without texts.
    """
    if not isinstance(encoder.pooler, LayerAttentionPooling):
        raise UsageError(
            f"{encoder.name} is pooled by {encoder.pooling_name}: no attention says how much a layer counts.",
            hint='Train it with `finetune_contrastive()` and `pooling="layer-attention"`.',
        )
    if not texts:
        raise DataError("There is no text to show the attention of.", hint="Give at least one.")
    rows: list[tuple[float, ...]] = []
    with evaluating(encoder):
        for start in range(0, len(texts), _BATCH):
            batch = encoder.tokenize(texts[start : start + _BATCH])
            states = encoder.hidden_states(batch, raw=True)
            found = encoder.pooler.layer_weights(*encoder.pooler.summaries_and_means(states, batch["attention_mask"]))
            rows += [tuple(row) for row in found.float().cpu().tolist()]
    return LayerWeights(model=encoder.name, texts=tuple(texts), weights=tuple(rows))
