"""The encoder that a contrastive run trains, with and without its pooler."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from truncate_kit.errors import DataError, UsageError
from truncate_kit.methods.contrast.settings import MEANS, ContrastiveSettings, LayerWeights
from truncate_kit.models import Encoder, evaluating, truncate
from truncate_kit.models.layer_pooling import ConcatPooling, LayerAttentionPooling, LayerPooling
from truncate_kit.models.pipeline import Dense, Normalize
from truncate_kit.training.evaluators import Evaluator
from truncate_kit.training.examples import Ids
from truncate_kit.training.objectives import OBJECTIVES


def poolable_encoder(encoder: Encoder, settings: ContrastiveSettings, *, seed: int) -> Encoder:
    """The encoder cut at the layer of `settings`, with a fresh pooler drawn from `seed`. Raises `UsageError`."""
    layer = encoder.depth if settings.layer is None else settings.layer
    cut = truncate(encoder, layer)
    _check_suits(cut, settings)
    cut.heads = None  # they would take the pooler's place
    cut.pool_with(None)
    cut.pooling = "mean" if settings.pooling in MEANS else _summary(cut)
    torch.manual_seed(seed)
    wide = _pool(cut, settings)
    # Attention has its MLP inside. A final Normalize is kept; what else followed pooling was trained for another one.
    fresh = [_fresh_dense(wide, cut.width)] if settings.mlp and settings.pooling != "layer-attention" else []
    cut.tail = nn.ModuleList([*fresh, *_normalize(encoder)])
    _set_dropout(cut, settings)
    return cut.to(encoder.device)


def _set_dropout(encoder: Encoder, settings: ContrastiveSettings) -> None:
    """Drop the share of `settings` in training, in place, wherever the backbone can.

    What a class builds only where its configuration drops something, as ModernBERT's after attention, is not added.
    Raises `UsageError` where an objective needs that some units are dropped and none are.
    """
    layers, attention = _droppers(encoder)
    if settings.dropout is not None:
        for layer in layers:
            layer.p = settings.dropout
        for one in attention:
            one.attention_dropout = settings.dropout
    if OBJECTIVES[settings.objective].data != "texts":
        return
    if not drops_units(encoder):
        raise UsageError(
            f"{encoder.name} drops no units in training, so that both copies of a text are the same.",
            hint="Use `dropout=0.1`."
            if settings.dropout is None
            else "Use another `objective`, or more of its layers.",
        )


def drops_units(encoder: Encoder) -> bool:
    """Whether training drops some."""
    layers, attention = _droppers(encoder)
    return any([*(layer.p for layer in layers), *(one.attention_dropout for one in attention)])


def _droppers(encoder: Encoder) -> tuple[list[nn.Dropout], list[Any]]:
    """The modules of the backbone that drop units, as modules of their own and within attention."""
    modules = list(encoder.backbone.modules())
    layers = [module for module in modules if isinstance(module, nn.Dropout)]
    return layers, [one for one in modules if isinstance(getattr(one, "attention_dropout", None), float)]


def _pool(encoder: Encoder, settings: ContrastiveSettings) -> int:
    """Make the encoder pool as `settings` say, in place; the width of what is pooled."""
    width = encoder.width
    if settings.pooling == "layer-attention":
        over, last_cls, literal = settings.over, settings.last_cls, settings.literal
        encoder.pool_with(
            LayerAttentionPooling(
                width, over=over, last_cls=last_cls, literal=literal, token=_summary(encoder), mlp=settings.mlp
            )
        )
    elif settings.pooling == "first-last":
        encoder.combine_layers((0, encoder.depth))
    elif settings.pooling == "concat":
        encoder.pool_with(ConcatPooling())
        return 2 * width
    elif settings.pooling == "mean-first-last":
        encoder.pool_with(LayerPooling(width, layers=(0, encoder.depth), over="mean", last=True))
        return 2 * width
    return width


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
        """Those of the inner evaluator."""
        return self._evaluator.texts()

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """The inner evaluator's scores of the encoder without its pooler."""
        with _without_pooler(encoder):
            return self._evaluator.score(encoder)


@contextlib.contextmanager
def _without_pooler(encoder: Encoder) -> Iterator[None]:
    pooler, tail = encoder.pooler, encoder.tail
    try:
        remove_pooler(encoder)
        yield
    finally:
        encoder.tail = tail
        if pooler is not None:
            encoder.pool_with(pooler)


def _check_suits(encoder: Encoder, settings: ContrastiveSettings) -> None:
    if encoder.depth == 0 and settings.pooling != "mean":
        raise UsageError(
            f"At layer 0 every text has the same CLS state, so {settings.pooling} pooling has nothing to learn from.",
            hint='Use a `layer` from 1 on, or `pooling="mean"`.',
        )
    if settings.pooling in ("first-last", "mean-first-last") and encoder.family.final_norm is not None:
        raise UsageError(
            f"A {encoder.family.name} model ends in a norm that its embeddings do not go through.",
            hint="Use mean or layer-attention as `pooling`.",
        )
    if settings.pooling == "concat" and encoder.family.decoder:
        raise UsageError(
            f"The first token of a {encoder.family.name} model sees no other, so it is no CLS to put before the mean.",
            hint="Use mean or layer-attention as `pooling`.",
        )


def _summary(encoder: Encoder) -> Literal["cls", "last"]:
    """The token that has seen the whole text."""
    return "last" if encoder.family.decoder else "cls"


def _fresh_dense(wide: int, width: int) -> Dense:
    dense = Dense(wide, width, bias=True, activation="Tanh")
    nn.init.normal_(dense.linear.weight, std=0.02)  # as the transformer's own layers begin
    nn.init.zeros_(dense.linear.bias)
    return dense


def _normalize(encoder: Encoder) -> list[nn.Module]:
    """The final Normalize, where the encoder ends in one."""
    return [Normalize()] if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize) else []


_BATCH = 32


@torch.inference_mode()
def layer_weights(encoder: Encoder, texts: Sequence[str]) -> LayerWeights:
    """The attention of each text's pooling over the layers, averaged over its queries.

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
