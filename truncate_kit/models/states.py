"""Texts in, states of every layer out: one pass over the texts, in batches of like length, padding left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.core.hardware import in_halves
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.settings import listed_texts
from truncate_kit.models.encoder import Encoder, RawStates, check_pooling, evaluating, length_batches
from truncate_kit.models.layer_pooling import PoolingMode, pool
from truncate_kit.models.truncation import truncate

# Texts that are tokenised and sorted by length at a time: enough for batches of like length, flat in memory.
WINDOW_TEXTS = 16_384
# Tokens in a batch, padding included, whatever the number of texts: 13 layers of width 768 are 330 MB of states.
BATCH_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch:
    """What one forward pass gives."""

    places: list[int]  # of this batch's texts among all
    states: Tensor  # pooled, (L', b, d) float32 on the CPU
    hidden_states: tuple[Tensor, ...]  # of tokens, L' inference tensors (b, t, d) on the encoder's device
    attention_mask: Tensor  # (b, t), 1 for real tokens, on the encoder's device


def iter_states(encoder: Encoder, texts: Sequence[str], **options: Any) -> Iterator[StateBatch]:
    """Yield the states of all layers 0 … L, each text once, not in the order of `texts`; see `iter_states_together`."""
    for (batch,) in iter_states_together((encoder,), texts, **options):
        yield batch


def iter_states_together(
    encoders: Sequence[Encoder],
    texts: Sequence[str],
    *,
    pooling: PoolingMode | None = None,
    raw: RawStates = False,
    prompt: bool = True,
    batch_size: int = 64,
    progress: Progress = silent,
) -> Iterator[tuple[StateBatch, ...]]:
    """Yield the states of several encoders over the same texts in the same batches, whatever their tokenizers.

    Args:
        encoders: Whose states they are.
        texts: The texts.
        pooling: None is the encoder's own.
        raw: Leave out the final norm below the last layer, or everywhere, see `Encoder.hidden_states`.
        prompt: Put the model's default prompt before each text.
        batch_size: Texts in a batch at most; see also `BATCH_TOKENS`.
        progress: Called as the batches go by.

    Raises:
        UsageError: This is no pooling, no size of a batch or no text.
    """
    if pooling is not None:
        check_pooling(pooling)
    task = "Reading states of " + " and ".join(encoder.name for encoder in encoders)
    done = 0
    for start in range(0, len(texts), WINDOW_TEXTS):
        window = texts[start : start + WINDOW_TEXTS]
        ids = [encoder.token_ids(window, prompt=prompt) for encoder in encoders]
        lengths = [max(map(len, rows)) for rows in zip(*ids, strict=True)]
        batches = []
        for alike in length_batches(lengths, batch_size):  # split if long texts would make one too large
            fitting = max(1, BATCH_TOKENS // max(1, lengths[alike[0]]))
            batches += [alike[first : first + fitting] for first in range(0, len(alike), fitting)]
        for chunk in batches:

            def read(part: Sequence[int]) -> tuple[StateBatch, ...]:
                found, places = [], [start + place for place in part]  # noqa: B023  # is called in this turn
                for encoder, rows in zip(encoders, ids, strict=True):  # noqa: B023  # likewise
                    with torch.inference_mode(), evaluating(encoder):
                        batch = encoder.pad([rows[place] for place in part])
                        mask, hidden = batch["attention_mask"], encoder.hidden_states(batch, raw=raw)
                        pooled = [pool(layer, mask, pooling or encoder.pooling).float().cpu() for layer in hidden]
                    # Stacked outside inference mode: an ordinary tensor, which callers may change in place.
                    states = torch.stack(pooled)
                    found.append(StateBatch(places=places, states=states, hidden_states=hidden, attention_mask=mask))
                return tuple(found)

            yield from in_halves(read, chunk)
            done += len(chunk)
            progress(task, done, len(texts))


def layer_states(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pooling: PoolingMode | None = None,
    raw: RawStates = False,
    up_to: int | None = None,
    prompt: bool = True,
    batch_size: int = 64,
    progress: ProgressOption = False,
) -> Tensor:
    """Return the states of all layers in the order of `texts`, (L', n, d) float32 on the CPU.

    up_to: the highest layer wanted, None for all; blocks above it are not run. Other options and errors are those of
    `iter_states_together`. Raises `LayerOutOfRangeError` and `LayerNotHeldError` as `truncate` does.
    """
    progress, texts = reporter(progress), listed_texts(texts)
    if up_to is not None:
        full, encoder = encoder, truncate(encoder, up_to, copy_weights=False)
        # Below the last layer raw `hidden_states` have no final norm either.
        if raw and up_to < full.depth and encoder.family.final_norm is not None:
            encoder.backbone.set_submodule(encoder.family.final_norm, nn.Identity())
    states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
    for batch in iter_states(
        encoder, texts, pooling=pooling, raw=raw, prompt=prompt, batch_size=batch_size, progress=progress
    ):
        states[:, batch.places] = batch.states
    return states
