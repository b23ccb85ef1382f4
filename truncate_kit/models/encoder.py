"""A text encoder: tokenizer, transformer without unused heads, pooling and what follows it."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from truncate_kit.errors import LayerOutOfRangeError, ModelError
from truncate_kit.memory import in_halves
from truncate_kit.models.capturing import forget_capturing
from truncate_kit.models.entering import entering
from truncate_kit.models.evaluating import evaluating, length_batches, original_order
from truncate_kit.models.families import family_of
from truncate_kit.models.layer_heads import LayerHeads
from truncate_kit.models.pooler_files import LayerPooler
from truncate_kit.models.pooling import ConcatPooling, PoolingMode, check_pooling, pool, pooled_width
from truncate_kit.models.tail import tail_width
from truncate_kit.models.text_reader import TextReader, padded
from truncate_kit.pair_keys import NO_KEYS, Keys
from truncate_kit.vectors import Rows, paired_rows

Batch = dict[str, Tensor]
Pooler = LayerPooler | ConcatPooling
RawStates = bool | Literal["all"]


class Encoder(nn.Module):
    """Texts in, sentence vectors or the states of all layers out.

    Args:
        name: As the model was named when it was loaded; for messages and reports.
        backbone: The base model, pooler head removed; the family follows from its configuration.
        tokenizer: None for random weights, which take ids only.
        pooling: How the tokens of a layer become its state.
        tail: Modules over the pooled state (Dense, Normalize, LayerNorm).
        max_length: Tokens per text, special tokens included.
        lower_case: Lower-case each text first.
        settings: The sentence-transformers settings that are kept (prompts, default prompt, similarity).
        pooler: Makes the sentence vector instead of `pooling`, which it then sets.
        heads: Make the vectors from the pooled states of all blocks instead, and score two of them; None for neither.
    """

    def __init__(
        self,
        *,
        name: str,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        pooling: PoolingMode = "mean",
        tail: Sequence[nn.Module] = (),
        max_length: int = 512,
        lower_case: bool = False,
        settings: dict[str, Any] | None = None,
        pooler: Pooler | None = None,
        heads: LayerHeads | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.backbone = backbone
        self.family = family_of(backbone.config)
        if self.family.quicken is not None:
            self.family.quicken(backbone)
        self.tokenizer = tokenizer
        self.pooling: PoolingMode = check_pooling(pooling)
        self.tail = nn.ModuleList(tail)
        self.max_length = max_length
        self.lower_case = lower_case
        self.settings = dict(settings or {})
        self.heads = heads
        self.seen: Keys = NO_KEYS  # of what it learned from or was chosen by, as far as noted; goes with copies
        self.combination: tuple[int, ...] | None
        self.pooler: Pooler | None
        self.pool_with(pooler)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and other processes get."""
        forget_capturing(self.backbone)
        return self.__dict__

    def pool_with(self, pooler: Pooler | None) -> None:
        """Make sentence vectors by this module from now on; None goes back to `pooling` of the last layer.

        Raises `ModelError` where it pools over layers that this model has not.
        """
        if isinstance(pooler, LayerPooler) and not pooler.fits(self.width, self.depth):
            raise ModelError(
                f"A {pooler.word} pooling does not fit: the model has width {self.width} and layers 0 to {self.depth}.",
                hint="Make the pooling for this model.",
            )
        self.combine_layers(None)
        self.pooler = pooler
        if pooler is not None:
            self.pooling = pooler.state_pooling  # of a single layer, as after saving and loading
        self.backbone.config.output_hidden_states = isinstance(pooler, LayerPooler)

    def combine_layers(self, layers: Sequence[int] | None) -> None:
        """Pool the mean over these layers from now on, without a pooler; None pools the last one alone.

        Raises `LayerOutOfRangeError`; `ModelError` where the family ends in a norm, which no ordinary folder can apply
        to the layers below the last: `LayerPooling` can.
        """
        for layer in layers or ():
            if not 0 <= layer <= self.depth:
                raise LayerOutOfRangeError(layer, self.depth)
        if layers is not None and self.family.final_norm is not None:
            shown = ", ".join(map(str, layers))
            raise ModelError(
                f"A {self.family.name} model ends in a norm, which no ordinary folder applies to layers {shown} first.",
                hint="Combine its layers with `combine()`: what that saves has a copy of the norm.",
            )
        self.combination = None if layers is None else tuple(layers)
        self.pooler = None
        # sentence-transformers reads the lower layers only if the saved configuration says so.
        self.backbone.config.output_hidden_states = layers is not None

    @property
    def depth(self) -> int:
        """L: the number of blocks; layers run from 0 (embeddings) to L."""
        return int(self.backbone.config.num_hidden_layers)

    @property
    def width(self) -> int:
        """d: the size of a state."""
        return int(self.backbone.config.hidden_size)

    @property
    def vector_width(self) -> int:
        """out: the size of a sentence vector."""
        made = pooled_width(self.pooler, self.width) if self.heads is None else self.heads.out_width
        return tail_width(self.tail, made)

    @property
    def pooling_name(self) -> str:
        """How a sentence vector is made, in a word."""
        return self.pooling if self.pooler is None else self.pooler.word

    @property
    def pools_over_layers(self) -> bool:
        """Whether its vectors are made of several layers' states: cut below its last layer, it is another model."""
        return self.combination is not None or isinstance(self.pooler, LayerPooler)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def num_parameters(self) -> int:
        """All weights that are kept, pooler excluded, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm after the last block, None where the family has none."""
        return self.backbone.get_submodule(self.family.final_norm) if self.family.final_norm else None

    @property
    def reader(self) -> TextReader:
        """The part that turns texts into ids. Raises `ModelError` without a tokenizer."""
        if self.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer.", hint="Use a model folder that has one.")
        return TextReader(
            tokenizer=self.tokenizer, max_length=self.max_length, lower_case=self.lower_case, settings=self.settings
        )

    def token_ids(self, texts: Sequence[str], *, prompt: bool = True) -> list[list[int]]:
        """See `TextReader.token_ids`."""
        return self.reader.token_ids(texts, prompt=prompt)

    def pad(self, ids: Sequence[Sequence[int]]) -> Batch:
        """Right-padded `input_ids` and `attention_mask`, each (b, t), on the encoder's device."""
        return self.moved(self.padded(ids))

    def moved(self, batch: Batch) -> Batch:
        """A batch on the encoder's device; the processor does not wait for what that still computes."""
        if self.device.type == "cuda":
            return {name: part.pin_memory().to(self.device, non_blocking=True) for name, part in batch.items()}
        return {name: part.to(self.device) for name, part in batch.items()}

    def padded(self, ids: Sequence[Sequence[int]]) -> Batch:
        """As `pad`, on the CPU."""
        filled = padded(ids, 0 if self.tokenizer is None else self.reader.padding_id)
        return {name: torch.from_numpy(part) for name, part in filled.items()}

    def tokenize(self, texts: Sequence[str], *, prompt: bool = True) -> Batch:
        """`token_ids` and `pad` in one: a batch for `forward` and `hidden_states`."""
        return self.pad(self.token_ids(texts, prompt=prompt))

    # Ids to states

    def _run(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        if self.family.decoder:
            # Positions follow the mask, so that left padding does not shift them; no cache is kept.
            options |= {"position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0), "use_cache": False}
        return self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)

    def token_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Output of the last kept layer for each token, or the mean over the combined layers: (b, t, d)."""
        if self.combination is None:
            return cast(Tensor, self._run(input_ids, attention_mask).last_hidden_state)
        states = self.hidden_states({"input_ids": input_ids, "attention_mask": attention_mask})
        total = states[self.combination[0]]
        for layer in self.combination[1:]:
            total = total + states[layer]
        return total / len(self.combination)

    def hidden_states(self, batch: Batch, *, raw: RawStates = False) -> tuple[Tensor, ...]:
        """Token states of all layers 0 … L in one pass: L + 1 tensors (b, t, d).

        Where the family ends in a final norm it is applied at every layer, because that is what an ordinary reload of
        a model truncated there computes. raw: leave the layers below the last as the blocks gave them, `all` also the
        last one.
        """
        norm = self.final_norm
        with entering(norm if raw == "all" else None) as entered:
            output = self._run(batch["input_ids"], batch["attention_mask"], output_hidden_states=True)
        below = tuple(output.hidden_states or ())[: self.depth]
        if norm is None or raw:
            return (*below, *(entered or [output.last_hidden_state]))
        return (*(norm(state) for state in below), output.last_hidden_state)

    def pooled(self, state: Tensor, mask: Tensor) -> Tensor:
        """Token states of one layer (b, t, d) as the tail takes them: (b, d), twice as wide for `ConcatPooling`."""
        if isinstance(self.pooler, ConcatPooling):
            return cast(Tensor, self.pooler(state, mask))
        return pool(state, mask, self.pooling)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Sentence vectors (b, out): the last layer's tokens, pooled, or what pooler or heads make; then the tail."""
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.heads is not None:
            vectors: Tensor = self.heads(self.block_states(input_ids, attention_mask))
        elif isinstance(self.pooler, LayerPooler):  # has only what an ordinary reload hands over: raw states
            vectors = self.pooler.pool_layers(self.hidden_states(batch, raw=True), attention_mask)
        else:
            return self.from_states(self.token_states(input_ids, attention_mask), attention_mask)
        return self._through_tail(vectors)

    @property
    def pools_tokens(self) -> bool:
        """Whether a sentence vector is made from `token_states` alone, not from the states of several layers."""
        return self.heads is None and not isinstance(self.pooler, LayerPooler)

    def from_states(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Sentence vectors (b, out) from `token_states` (b, t, d)."""
        return self._through_tail(self.pooled(states, attention_mask))

    def _through_tail(self, vectors: Tensor) -> Tensor:
        for module in self.tail:
            vectors = module(vectors)
        return vectors

    def block_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Pooled states of the blocks 1 … L as the heads take them, (L, b, d)."""
        raw: RawStates = "all" if self.heads is not None and self.heads.raw else False
        states = self.hidden_states({"input_ids": input_ids, "attention_mask": attention_mask}, raw=raw)[1:]
        return torch.stack([pool(state, attention_mask, self.pooling) for state in states])

    # Texts to vectors

    def encode(self, texts: str | Sequence[str], *, batch_size: int = 64, prompt: bool = True) -> NDArray[np.float32]:
        """Sentence vectors (n, out), in the order of `texts`; no gradients, no dropout.

        A single text gives one vector, (out,). `vectors` gives them as a tensor.
        """
        several = [texts] if isinstance(texts, str) else texts
        found: NDArray[np.float32] = self.vectors(several, batch_size=batch_size, prompt=prompt).numpy()
        return found[0] if isinstance(texts, str) else found

    def vectors(self, texts: Sequence[str], *, batch_size: int = 64, prompt: bool = True) -> Tensor:
        """As `encode`, a tensor on the CPU."""
        return self.encode_ids(self.token_ids(texts, prompt=prompt), batch_size=batch_size)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, batch_size: int = 64) -> Tensor:
        """`vectors` of texts that are already ids, as `token_ids` gives them."""
        rows: list[Tensor] = []
        batches = length_batches([len(row) for row in ids], batch_size)
        with evaluating(self), torch.inference_mode():
            for batch in batches:
                rows += in_halves(lambda part: self(**self.pad([ids[place] for place in part])).float().cpu(), batch)
        if not rows:
            return torch.empty((0, self.vector_width), dtype=torch.float32)
        return torch.cat(rows)[original_order(batches)]

    @torch.no_grad()
    def similarities(self, first: Rows, second: Rows) -> Tensor:
        """How alike the texts of each row are, (n,), from their vectors (n, out): the heads' score, else the cosine.

        Raises `UsageError` where there are not as many of both.
        """
        first, second = paired_rows(first, second)
        if self.heads is not None:
            return self.heads.similarities(first.to(self.device), second.to(self.device)).cpu()
        return nn.functional.cosine_similarity(first, second)
