"""Turn texts into token ids, hidden states and sentence vectors."""

import contextlib
import copy
import itertools
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from truncate_kit.core.errors import ModelError, known_name
from truncate_kit.core.hardware import in_halves, select_device
from truncate_kit.core.progress import ProgressOption, reporter
from truncate_kit.core.results import COUNT, check_number, drawn, listed_texts
from truncate_kit.core.vectors import Rows, TextEncoder, paired_rows
from truncate_kit.data.seen import NO_KEYS, Keys
from truncate_kit.models.families import family_of
from truncate_kit.models.layer_pooling import LayerPooler, PoolingMode, pool

ScoreKind = Literal["exp", "sigmoid"]
_BUILT: set[type] = set()
_MOST_SPECIAL = 8  # upper bound on the special tokens added to a text
_FIRST_SLICE, _MOST_SLICED = 64, 1024  # texts tokenized at once; slices double
CPU_TOKENS = 1024
"""Tokens per batch on the CPU: without this limit mixed lengths take 2 times as long at width 384, 5 times at 768."""
Batch = dict[str, Tensor]
# Indices of texts, with their token ids.
Row = tuple[int, Sequence[int]]
Slice = tuple[Sequence[int], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader:
    """A tokenizer with its maximum length, lower-casing and prompts."""

    tokenizer: Any  # a PreTrainedTokenizerBase, or None for random weights
    max_length: int  # tokens, special ones included
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # config_sentence_transformers.json, with prompts

    @property
    def padding_id(self) -> int:
        """Return the id of the padding token."""
        return 0 if self.tokenizer is None else int(self.tokenizer.pad_token_id or 0)

    def token_ids(self, texts: Sequence[str], *, prompt: bool = True) -> list[list[int]]:
        """Return the token ids of each text, truncated to `max_length` and unpadded.

        prompt: Prepend the model's default prompt. Raises `UsageError` unless all texts are strings.
        """
        texts = listed_texts(texts)
        if not texts:
            return []
        start = self._default_prompt if prompt else ""
        texts = [start + text for text in texts]
        if self.lower_case:
            texts = self._lowered(texts)
        fast = self.tokenizer.is_fast  # a quarter faster; a call sets its options
        call = partial(self.tokenizer, max_length=self.max_length, truncation=True, padding=False)
        ids: list[list[int]] = call([""] if fast else texts)["input_ids"]
        if fast:
            ids = [row.ids for row in self.tokenizer.backend_tokenizer.encode_batch_fast(texts)]
        embedded = getattr(self.tokenizer, "num_embedded", None)  # set if special tokens have no embedding
        if embedded and (largest := max(map(max, filter(None, ids)), default=0)) >= embedded:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise ModelError(
                f"A text has the token {token}, id {largest:,}, but the model embeds only {embedded:,} tokens.",
                hint="Remove it from the text, or use the model's own tokenizer.",
            )
        return ids

    def _lowered(self, texts: Sequence[str]) -> list[str]:
        """Lower-case texts except special tokens, as sentence-transformers does."""
        kept = [token.content for token in self.tokenizer.added_tokens_decoder.values() if not token.normalized]
        parts = re.compile(f"({'|'.join(map(re.escape, kept)) or '(?!)'})")  # every other part is one of `kept`
        lower = normalizers.Lowercase().normalize_str
        return [
            "".join(part if number % 2 else lower(part) for number, part in enumerate(parts.split(text)))
            for text in texts
        ]

    @property
    def _default_prompt(self) -> str:
        default = self.settings.get("default_prompt_name")
        return (self.settings.get("prompts", {}).get(default) or "") if default else ""

    def num_cut(self, texts: Sequence[str]) -> int:
        """Count the texts longer than `max_length`, without tokenizing texts of few bytes."""
        room = self.max_length - len(self._default_prompt.encode()) - _MOST_SPECIAL
        return self.num_longer([text for text in texts if len(text.encode()) > room])

    def num_longer(self, texts: Sequence[str], *, prompt: bool = True) -> int:
        """Count the texts longer than `max_length` by tokenizing all of them."""
        one_more = replace(self, max_length=self.max_length + 1)
        return sum(len(ids) > self.max_length for ids in one_more.token_ids(texts, prompt=prompt))

    def shortened(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Return a text's ids truncated to `tokens`; a final special token stays last."""
        closing = list(ids[-1:]) if ids and ids[-1] in self.tokenizer.all_special_ids else []
        return list(ids) if len(ids) <= tokens else [*ids[: tokens - len(closing)], *closing]


def padded(rows: Sequence[Sequence[int]], padding: int, length: int | None = None) -> dict[str, NDArray[np.int64]]:
    """Return right-padded ids and mask, each (b, t); t is `length` or the longest row's, at least 1."""
    shape = (len(rows), length or max(1, *(len(row) for row in rows)))
    ids, mask = np.full(shape, padding, np.int64), np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


class BlockLinear(nn.Module):
    """Apply a separate linear layer to the states of each block.

    runs: Of each group of equal consecutive blocks, input width, output width and number of blocks.
    """

    def __init__(self, runs: Sequence[tuple[int, int, int]], generator: torch.Generator | None = None) -> None:
        super().__init__()

        def drawn(bound: float, *shape: int) -> nn.Parameter:
            return nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) * bound)

        # Biases are flat: the optimiser recognizes biases by their single dimension.
        self.weights = nn.ParameterList(drawn(wide**-0.5, count, wide, code) for wide, code, count in runs)
        self.biases = nn.ParameterList(drawn(wide**-0.5, count * code) for wide, code, count in runs)

    def forward(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Map the states (blocks, b, in) of each run to (blocks, b, out)."""
        rows = zip(states, self.weights, self.biases, strict=True)
        return [torch.baddbmm(bias.view(len(state), 1, -1), state, weight) for state, weight, bias in rows]


class BlockNetworks(nn.Module):
    """Standardize the states of each block l, then apply `depth` layers tanh(W_l x + b_l) of this block."""

    # (L, 1, d); without these, dimensions of large variance would dominate.
    mean: Tensor
    scale: Tensor

    def __init__(
        self, width: int, code_widths: Sequence[int], generator: torch.Generator | None = None, *, depth: int = 1
    ) -> None:
        super().__init__()
        self.width, self.code_widths = width, tuple(code_widths)
        self.runs = [(code, len(list(run))) for code, run in itertools.groupby(self.code_widths)]
        layers = [[(code if number else width, code, count) for code, count in self.runs] for number in range(depth)]
        self.layers = nn.ModuleList(BlockLinear(runs, generator) for runs in layers)
        self.register_buffer("mean", torch.zeros(len(self.code_widths), 1, width))
        self.register_buffer("scale", torch.ones(len(self.code_widths), 1, width))

    def fit(self, mean: Tensor, deviation: Tensor) -> None:
        """Set mean and standard deviation of the states, (L, d) each; constant dimensions get scale 1."""
        self.mean.copy_(mean[:, None])
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, 1.0)[:, None])

    def standardized(self, states: Tensor) -> Tensor:
        """Standardize states (L, b, d)."""
        return (states - self.mean) / self.scale

    def forward(self, states: Tensor) -> list[Tensor]:
        """Map states (L, b, d) to codes: one tensor (blocks, b, code width) per run of blocks of equal code width."""
        codes = list(self.standardized(states).split([count for _, count in self.runs]))
        for layer in self.layers:
            codes = [code.tanh() for code in layer(codes)]
        return codes


class LayerHeads(nn.Module):
    """Compute a code of each text at every block, and score pairs of texts by the distances of their codes.

    A vector concatenates the L codes, each of length 1/√L: the cosine of two vectors is the mean of L cosines. The
    score depends on the distances x = 1 − cos at each block, divided by `scale` (L,), their means over training pairs.

    Args:
        width: State size d.
        blocks: Number of blocks L.
        code_widths: Size of each block's code, see `BlockNetworks`; None uses the states.
        kind: `exp`: exp(−f(x)), f(x) = Σ_k softplus(v_k) |tanh(w_k·x + c_k) − tanh(c_k)|: equal texts always score 1.
            `sigmoid`: σ(v·tanh(W x + c) + a), as in the paper.
        hidden: Number of hidden units k.
        raw: Use states without the final norm.
        depth: Layers of each network.
    """

    scale: Tensor

    def __init__(
        self,
        width: int,
        blocks: int,
        code_widths: Sequence[int] | None,
        *,
        kind: ScoreKind,
        hidden: int,
        raw: bool = False,
        depth: int | None = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.width, self.blocks, self.raw = width, blocks, raw
        self.networks = BlockNetworks(width, code_widths, generator, depth=depth or 1) if code_widths else None
        self.kind: ScoreKind = known_name("score", kind, get_args(ScoreKind))
        self.runs = self.networks.runs if self.networks is not None else [(width, blocks)]
        self.out_features = sum(code * count for code, count in self.runs)
        self.settings: dict[str, Any] = {"width": width, "blocks": blocks, "kind": kind, "hidden": hidden, "raw": raw}
        self.settings |= {"code_widths": code_widths or None, "depth": depth if code_widths else None}
        # Non-negative weights: the initial score falls as any distance grows.
        self.weight = nn.Parameter(torch.rand(hidden, blocks, generator=generator) * 2 / blocks)
        self.shift = nn.Parameter(torch.rand(hidden, generator=generator) * 2 - 1)
        start = torch.full((hidden,), 1 / hidden)
        self.out = nn.Parameter(start.expm1().log() if kind == "exp" else -start)
        self.offset = nn.Parameter(torch.zeros(1)) if kind == "sigmoid" else None
        self.register_buffer("scale", torch.ones(blocks))

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.weight.device

    def forward(self, states: Tensor) -> Tensor:
        """Return vectors (b, out) of the pooled states of blocks 1 … L, (L, b, d)."""
        codes: list[Tensor] = [states] if self.networks is None else self.networks(states)
        rows = [nn.functional.normalize(code, dim=-1).transpose(0, 1).flatten(1) for code in codes]
        return torch.cat(rows, dim=1) / float(self.blocks**0.5)

    def distances(self, first: Tensor, second: Tensor) -> Tensor:
        """Return 1 − cos of the codes at each block, (b, L), as ½‖û − v̂‖²: exactly 0 for equal codes.

        Raises `ModelError` for vectors of another size.
        """
        if first.shape[-1] != self.out_features:
            raise ModelError(
                f"The layer heads score vectors of {self.out_features:,} numbers, but got {first.shape[-1]:,}.",
                hint="Score full vectors, without `dimensions`.",
            )
        sizes = [code * count for code, count in self.runs]
        distances = []
        for (code, count), *sides in zip(self.runs, first.split(sizes, 1), second.split(sizes, 1), strict=True):
            left, right = (nn.functional.normalize(side.reshape(-1, count, code), dim=-1) for side in sides)
            distances.append((left - right).square().sum(dim=-1) / 2)
        return torch.cat(distances, dim=1)

    def score(self, distances: Tensor) -> Tensor:
        """Return scores (b,), from 0 to 1, of pairs with these distances (b, L)."""
        moved = torch.tanh(nn.functional.linear(distances / self.scale, self.weight, self.shift))
        if self.offset is not None:
            return torch.sigmoid(moved @ self.out + self.offset)
        return torch.exp(-((moved - torch.tanh(self.shift)).abs() @ nn.functional.softplus(self.out)))

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """Return scores (b,), from 0 to 1, of vector pairs, (b, out) each."""
        return self.score(self.distances(first, second).to(self.weight.dtype))


RawStates = bool | Literal["all"]
POOLING_MODES: tuple[PoolingMode, ...] = ("mean", "cls", "max", "last")  # values of the pooling option


def check_pooling(mode: str) -> PoolingMode:
    """Return `mode`. Raises `UsageError` unless it is in `POOLING_MODES`."""
    return known_name("pooling", mode, POOLING_MODES)


class SentenceEncoder:
    """Methods named as in sentence-transformers."""

    device: Any
    reader: Any

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | bool | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        device: str | None = None,
    ) -> Any:
        """Return sentence vectors (n, out), or (out,) for a single text, as a float32 array.

        Args:
            sentences: One text or several.
            prompt_name: The model's prompt to prepend; by default its default prompt.
            prompt: Text to prepend instead; False: none.
            batch_size: By default 64 in torch; ONNX Runtime limits tokens.
            show_progress_bar: Draw a bar.
            convert_to_tensor: Return a CPU tensor.
            normalize_embeddings: Scale vectors to length 1.
            device: Move there; a graph must be there.

        Raises:
            UsageError: The prompt is unknown, or a graph is on another device.
        """
        if device is not None:
            self._move(device)
        if prompt_name is not None:
            prompts = settings_of(self).get("prompts") or {}
            prompt = prompts[known_name("`prompt_name`", prompt_name, tuple(prompts))] or False
        several = [sentences] if isinstance(sentences, str) else sentences
        vectors = self.vectors(several, batch_size=batch_size, prompt=prompt, progress=bool(show_progress_bar))
        vectors = nn.functional.normalize(vectors, dim=1) if normalize_embeddings else vectors
        vectors = vectors[0] if isinstance(sentences, str) else vectors
        return vectors if convert_to_tensor else vectors.numpy()

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the prompt for queries, if any."""
        return self.encode(sentences, **{"prompt": side_prompt(self, QUERY_PROMPTS)} | options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the prompt for documents, if any."""
        return self.encode(sentences, **{"prompt": side_prompt(self, DOCUMENT_PROMPTS)} | options)

    def similarity(self, first: Rows, second: Rows) -> Tensor:
        """Return similarities (n, m) by the model's measure."""
        a, b = (torch.as_tensor(rows).float() for rows in (first, second))
        match settings_of(self).get("similarity_fn_name") or "cosine":
            case "cosine":
                return nn.functional.normalize(a, dim=1) @ nn.functional.normalize(b, dim=1).T
            case "dot":
                return a @ b.T
            case measure:
                return -torch.cdist(a, b, p={"euclidean": 2.0, "manhattan": 1.0}[measure])

    def vectors(
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        prompt: str | bool | None = None,
        progress: ProgressOption = False,
    ) -> Tensor:
        """Return CPU vectors (n, out); repeated texts are encoded once."""
        texts, own, show = listed_texts(texts), prompt if isinstance(prompt, str) else "", reporter(progress)
        place = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        longest_first = sorted(place, key=len, reverse=True)

        def slices() -> Iterator[Slice]:
            start, size = 0, _FIRST_SLICE
            while start < len(place):
                show("Encoding", start, len(place))
                part = longest_first[start : start + size]
                ids = self.reader.token_ids([own + text for text in part], prompt=prompt in (None, True))
                yield [place[text] for text in part], ids
                start, size = start + size, min(2 * size, _MOST_SLICED)

        vectors = self.encode_slices(slices(), len(place), batch_size=batch_size)
        show("Encoding", len(place), len(place))
        return vectors if len(place) == len(texts) else vectors[torch.tensor([place[text] for text in texts])]

    def encode_ids(self, ids: Sequence[Sequence[int]], *, batch_size: int | None = None) -> Tensor:
        """Return sentence vectors (n, out) of token ids."""
        return self.encode_slices([(range(len(ids)), ids)], len(ids), batch_size=batch_size)

    def encode_slices(self, slices: Iterable[Slice], count: int, *, batch_size: int | None = None) -> Tensor:
        """Return vectors (count, out); graphs run while the next slice is tokenized."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path) -> None:
        """Save as a sentence-transformers folder."""
        raise NotImplementedError

    def push_to_hub(self, name: str, *, private: bool = True) -> str:
        """Upload to the hub; return the address."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder, "model"))
            return str(drawn("push", Path(folder, "model"), name, public=not private)[0])

    def _move(self, device: str) -> None:
        raise NotImplementedError


class Encoder(SentenceEncoder, nn.Module):
    """Turn texts into sentence vectors or the hidden states of all layers.

    Args:
        name: Shown in messages and reports.
        backbone: The base model without its pooler head.
        pooling: How the tokens of a layer are pooled.
        tail: Modules applied to the pooled state (Dense, Normalize, LayerNorm).
        pooler: Pools over layers, instead of `pooling`.
        heads: Compute vectors from the pooled states of all blocks, and score vector pairs.
    """

    def __init__(
        self,
        *,
        name: str,
        backbone: PreTrainedModel,
        reader: TextReader,
        pooling: PoolingMode = "mean",
        tail: Iterable[nn.Module] = (),
        pooler: LayerPooler | None = None,
        heads: LayerHeads | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.backbone = backbone
        self.family = family_of(backbone.config)
        if self.family.quicken is not None:
            self.family.quicken(backbone)
        self.tokenizer: PreTrainedTokenizerBase | None = reader.tokenizer
        self.max_length, self.lower_case, self.settings = reader.max_length, reader.lower_case, reader.settings
        self.tail = nn.Sequential(*tail)
        self.heads = heads
        self.seen: Keys = NO_KEYS  # pairs used in training or selection
        self.trained: bool | None = None  # None if unknown
        self.pool_with(pooler, pooling)
        _BUILT.add(type(backbone))

    def __repr__(self) -> str:
        return f"Encoder({self.name!r}: {self.family.name}, layer {self.depth}, {self.vector_width} numbers)"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # of torch
        if type(self.backbone) not in _BUILT:
            # transformers captures states only of classes built in this process.
            with torch.device("meta"):
                _BUILT.add(type(type(self.backbone)(copy.deepcopy(self.backbone.config))))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, without hooks, for pickling."""
        forget_capturing(self.backbone)
        return self.__dict__

    def pool_with(self, pooler: LayerPooler | None, pooling: PoolingMode | None = None) -> None:
        """Set the pooler over layers, or else the `pooling` of the last layer (by default `state_pooling`)."""
        self.combination: tuple[int, ...] | None = None
        self.pooler = pooler
        # As in a reloaded model.
        self.pooling: PoolingMode = pooler.state_pooling if pooler else pooling or self.state_pooling
        # sentence-transformers reads lower layers only with this setting
        self.backbone.config.output_hidden_states = pooler is not None

    def combine_layers(self, layers: Sequence[int], pooling: PoolingMode | None = None) -> None:
        """Average the token states of these layers, then pool by `pooling`, see `pool_with`.

        Raises `ModelError` if the family ends in a norm.
        """
        if self.family.final_norm is not None:
            shown = ", ".join(map(str, layers))
            raise ModelError(
                f"A {self.family.name} model ends in a norm, which sentence-transformers omits on layers {shown}.",
                hint="Combine its layers with `combine()`, which saves a copy of the norm for these layers.",
            )
        self.pool_with(None, pooling)
        self.combination, self.backbone.config.output_hidden_states = tuple(layers), True

    @property
    def depth(self) -> int:
        """Return L, the number of blocks."""
        return int(self.backbone.config.num_hidden_layers)

    @property
    def width(self) -> int:
        """Return d, the size of a state."""
        return int(self.backbone.config.hidden_size)

    @property
    def vector_width(self) -> int:
        """Return the size of a sentence vector."""
        doubled = self.pooling == "concat" if self.pooler is None else self.pooler.doubled
        width = 2 * self.width if doubled else self.width
        for module in (self.heads, *self.tail):
            width = getattr(module, "out_features", width)
        return width

    @property
    def pooling_name(self) -> str:
        """Return the name of the pooling or the pooler."""
        return self.pooling if self.pooler is None else self.pooler.word

    @property
    def state_pooling(self) -> PoolingMode:
        """Return the mode that pools the tokens of one layer to width d."""
        return "cls" if self.pooling == "concat" else self.pooling

    @property
    def pools_over_layers(self) -> bool:
        """Return whether the pooling spans several layers."""
        return self.combination is not None or self.pooler is not None

    @property
    def pools_tokens(self) -> bool:
        """Return whether vectors are computed from `token_states` alone."""
        return self.heads is None and self.pooler is None

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return next(self.parameters()).device

    @property
    def num_parameters(self) -> int:
        """Count all weights, shared ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def final_norm(self) -> nn.Module | None:
        """Return the norm after the last block, if any."""
        return self.backbone.get_submodule(self.family.final_norm) if self.family.final_norm else None

    @property
    def reader(self) -> TextReader:
        """Return the tokenizer and text settings. Raises `ModelError` without a tokenizer."""
        if self.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer.", hint="Use a model folder that has one.")
        names = ("tokenizer", "max_length", "lower_case", "settings")
        return TextReader(**{name: getattr(self, name) for name in names})

    def token_ids(self, texts: Sequence[str], *, prompt: bool = True) -> list[list[int]]:
        """See `TextReader.token_ids`."""
        return self.reader.token_ids(texts, prompt=prompt)

    def pad(self, ids: Sequence[Sequence[int]]) -> Batch:
        """Return the right-padded batch, (b, t), on the encoder's device."""
        return self.moved(self.padded(ids))

    def padded(self, ids: Sequence[Sequence[int]]) -> Batch:
        """Return the same batch as `pad`, but on the CPU."""
        filled = padded(ids, 0 if self.tokenizer is None else self.reader.padding_id)
        return {name: torch.from_numpy(part) for name, part in filled.items()}

    def moved(self, batch: Batch) -> Batch:
        """Copy a batch to the encoder's device, to a GPU asynchronously."""
        if self.device.type == "cuda":
            return {name: part.pin_memory().to(self.device, non_blocking=True) for name, part in batch.items()}
        return {name: part.to(self.device) for name, part in batch.items()}

    def tokenize(self, texts: Sequence[str], *, prompt: bool = True) -> Batch:
        """Return the padded batch of these texts."""
        return self.pad(self.token_ids(texts, prompt=prompt))

    def _run(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        if self.family.decoder:
            # Left padding must not shift positions.
            options |= {"position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0), "use_cache": False}
        return self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)

    def token_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the token states (b, t, d) of the last layer, or their mean over the layers of `combine_layers`."""
        if self.combination is None:
            return cast(Tensor, self._run(input_ids, attention_mask).last_hidden_state)
        states = self.hidden_states({"input_ids": input_ids, "attention_mask": attention_mask})
        total = states[self.combination[0]]
        for layer in self.combination[1:]:
            total = total + states[layer]
        return total / len(self.combination)

    def hidden_states(self, batch: Batch, *, raw: RawStates = False) -> tuple[Tensor, ...]:
        """Return the token states of layers 0 … L from one pass: L + 1 tensors (b, t, d).

        The final norm is applied at each layer, as in a model cut at that layer. raw: True omits the norm below the
        last layer, `all` at every layer.
        """
        norm, entered, here = self.final_norm, list[Tensor](), threading.get_ident()

        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if threading.get_ident() == here:  # other threads may run the model
                entered.append(inputs[0])

        with contextlib.ExitStack() as hooks:
            if norm is not None and raw == "all":
                hooks.callback(norm.register_forward_pre_hook(note).remove)
            output = self._run(batch["input_ids"], batch["attention_mask"], output_hidden_states=True)
        below = tuple(output.hidden_states or ())[: self.depth]
        if norm is None or raw:
            return (*below, *(entered or [output.last_hidden_state]))
        return (*(norm(state) for state in below), output.last_hidden_state)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return sentence vectors (b, out)."""
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.heads is not None:
            states = self.hidden_states(batch, raw="all" if self.heads.raw else False)[1:]
            pooled = torch.stack([pool(state, attention_mask, self.state_pooling) for state in states])
            return cast(Tensor, self.tail(self.heads(pooled)))
        if self.pooler is not None:  # raw states, as in a reloaded model
            return cast(Tensor, self.tail(self.pooler.pool_layers(self.hidden_states(batch, raw=True), attention_mask)))
        return self.from_states(self.token_states(input_ids, attention_mask), attention_mask)

    def from_states(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return sentence vectors (b, out) from `token_states` (b, t, d)."""
        vectors: Tensor = self.tail(pool(states, attention_mask, self.pooling))
        return vectors

    def save_pretrained(self, folder: str | Path) -> None:
        """Save as a sentence-transformers folder, replaced if it exists."""
        drawn("save", self, Path(folder))

    def _move(self, device: str) -> None:
        self.to(select_device(device))

    def encode_slices(self, slices: Iterable[Slice], count: int, *, batch_size: int | None = None) -> Tensor:
        """Return sentence vectors (count, out) of token ids."""
        tokens = CPU_TOKENS if batch_size is None and self.device.type == "cpu" else None
        size = 64 if batch_size is None else batch_size
        vectors = torch.empty((count, self.vector_width), dtype=torch.float32)

        def compute(batch: Sequence[Row]) -> None:
            places, ids = zip(*batch, strict=True)
            vectors[list(places)] = self(**self.pad(ids)).float().cpu()

        with evaluating(self), torch.inference_mode():
            for places, ids in slices:
                for batch in length_batches([len(row) for row in ids], size, tokens):
                    list(in_halves(compute, [(places[index], ids[index]) for index in batch]))
        return vectors

    @torch.no_grad()
    def similarities(self, first: Rows, second: Rows) -> Tensor:
        """Return scores (n,) of vector pairs (n, out), by heads or cosine. Raises `UsageError` for unequal sizes."""
        first, second = paired_rows(first, second)
        if self.heads is not None:
            return self.heads.similarities(first.to(self.device), second.to(self.device)).cpu()
        return nn.functional.cosine_similarity(first, second)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module in evaluation mode inside the context."""
    if not any(part.training for part in module.modules()):  # avoid two slow switches
        yield
        return
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def length_batches(lengths: Sequence[int], batch_size: int, tokens: int | None = None) -> list[list[int]]:
    """Return batches of text indices, longest first: a lack of memory shows early. Raises `UsageError`.

    tokens: Maximum tokens per batch with padding; a longer text is a batch.
    """
    check_number("batch_size", batch_size, COUNT)
    order, batches, start = sorted(range(len(lengths)), key=lambda place: -lengths[place]), [], 0
    while start < len(order):
        size = batch_size if tokens is None else min(batch_size, max(1, tokens // max(1, lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def original_order(batches: Iterable[Sequence[int]]) -> Tensor:
    """Return the index (n,) that restores the texts' order in concatenated batches."""
    return torch.tensor([place for batch in batches for place in batch]).argsort()


def forget_capturing(model: nn.Module) -> None:
    """Remove the unpicklable hooks that capture hidden states; transformers adds new ones when needed."""
    for module in model.modules():
        for number, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", None) == "transformers.utils.output_capturing":
                del module._forward_hooks[number]
        if getattr(module, "_output_capturing_hooks_installed", False):
            setattr(module, "_output_capturing_hooks_installed", False)  # noqa: B010  # not declared


# sentence-transformers writes an empty "document" prompt into every folder: empty prompts are skipped.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def prompted_ids(encoder: Encoder, texts: Sequence[str], prompt: str | None) -> list[list[int]]:
    """Return token ids of texts with this prompt, by default the model's."""
    if prompt is None:
        return encoder.token_ids(texts)
    return encoder.token_ids([prompt + text for text in texts], prompt=False)


def side_prompt(encoder: TextEncoder, names: Sequence[str]) -> str | None:
    """Return the first non-empty prompt of these names, else ""; None for models without prompts."""
    prompts = settings_of(encoder).get("prompts") or {}
    return next((prompts[name] for name in names if prompts.get(name)), "") if prompts else None


def settings_of(encoder: TextEncoder) -> Mapping[str, Any]:
    """Return the sentence-transformers settings; empty without any."""
    settings: Mapping[str, Any] = getattr(getattr(encoder, "reader", None), "settings", {})
    return settings
