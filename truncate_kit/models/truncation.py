"""Remove blocks or word pieces of an encoder exactly, count parameters, compute the states of all layers.

WordPiece chooses the longest piece, Unigram the best path, BPE the merge of lowest rank: removing candidates that are
never chosen changes no token and no vector.
"""

import contextlib
import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase

from truncate_kit.core.errors import LayerNotHeldError, LayerOutOfRangeError, ModelError
from truncate_kit.core.hardware import in_halves
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import listed_texts
from truncate_kit.models.encoder import Batch, Encoder, RawStates, check_pooling, evaluating, length_batches
from truncate_kit.models.families import family_of
from truncate_kit.models.layer_pooling import PoolingMode, pool
from truncate_kit.models.pipeline import quiet_transformers
from truncate_kit.models.tokenizing import with_rules


def truncate(encoder: Encoder, layer: int, *, copy_weights: bool = True) -> Encoder:
    """Return the encoder cut at `layer`: its embeddings and blocks 1 … layer.

    Its token states equal `encoder.hidden_states(batch)[layer]`, bitwise on the CPU in float32.

    Args:
        encoder: Left unchanged.
        layer: From 0 (embeddings) to L.
        copy_weights: False: share the weights with `encoder`.

    Raises:
        LayerOutOfRangeError: The layer does not exist.
        LayerNotHeldError: The model class cannot represent a cut at this layer.
    """
    truncated_config(encoder.backbone.config, layer)
    return keep(encoder, range(1, layer + 1), copy_weights=copy_weights)


def keep(encoder: Encoder, blocks: Sequence[int], *, copy_weights: bool = True) -> Encoder:
    """Return the encoder with its embeddings and these blocks only.

    Its token states equal the result of these blocks in order and any final norm, bitwise on the CPU in float32.
    Poolings and heads over layers are removed unless all blocks stay.

    blocks: Numbers from 1 to L in rising order.
    encoder, copy_weights: See `truncate`.

    Raises:
        LayerOutOfRangeError: A block does not exist.
        LayerNotHeldError: The model class cannot represent these blocks.
        ModelError: The numbers are not in rising order.
    """
    whole, config = len(blocks) == encoder.depth, kept_config(encoder.backbone.config, blocks)
    weights = encoder.backbone.state_dict()
    weights = {new: weights[old] for old, new in _kept_names(encoder.backbone.config, weights, blocks).items()}
    if copy_weights:
        weights = {name: value.detach().clone() for name, value in weights.items()}
    with quiet_transformers():
        backbone = type(encoder.backbone).from_pretrained(
            None,
            config=config,
            state_dict=weights,
            attn_implementation=encoder.backbone.config._attn_implementation,
            dtype=encoder.backbone.dtype,
        )
    if encoder.family.pooler is not None:
        setattr(backbone, encoder.family.pooler, None)
    if encoder.family.quicken is not None:
        encoder.family.quicken(backbone)
    shared: list[Any] = [encoder.family, encoder.tokenizer, encoder.seen]
    shared += [] if copy_weights else [encoder.tail, encoder.pooler]
    kept = Encoder.__new__(Encoder)  # threads may use `encoder` meanwhile
    kept.__dict__ = copy.deepcopy(vars(encoder), {id(encoder.backbone): backbone} | {id(part): part for part in shared})
    if not whole:
        kept.heads = None
        if kept.pools_over_layers:
            kept.pool_with(None, kept.pooling)
    return kept.to(encoder.device).train(encoder.training)


def layers_held(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the layers, 0 … L, at which a cut model can be saved and loaded exactly."""
    held = []
    for layer in range(config.num_hidden_layers + 1):
        with contextlib.suppress(LayerNotHeldError):
            truncated_config(config, layer)
            held.append(layer)
    return tuple(held)


def truncated_config(config: PretrainedConfig, layer: int) -> PretrainedConfig:
    """Return the configuration of a model cut at `layer`. Raises as `truncate`."""
    if not 0 <= layer <= config.num_hidden_layers:
        raise LayerOutOfRangeError(layer, config.num_hidden_layers, lowest=family_of(config).lowest_layer)
    return kept_config(config, range(1, layer + 1))


def kept_config(config: PretrainedConfig, blocks: Sequence[int]) -> PretrainedConfig:
    """Return the configuration of a model with these blocks only. Raises as `keep`."""
    family, depth, blocks = family_of(config), config.num_hidden_layers, list(blocks)
    for block in blocks:
        if not 1 <= block <= depth:
            raise LayerOutOfRangeError(block, depth, block=True)
    if blocks != sorted(set(blocks)):
        raise ModelError(
            f"The blocks {', '.join(map(str, blocks))} are not in rising order.",
            hint="Name each block once, the lowest first.",
        )
    if len(blocks) < family.lowest_layer:
        raise LayerNotHeldError(
            f"A {family.name} model cannot be cut at layer {len(blocks)}: its class does not work without blocks.",
            hint=f"Use a layer from {family.lowest_layer} to {depth}.",
        )
    kept = copy.deepcopy(config)
    if getattr(config, "layer_types", None) is not None:  # transformers refuses a list of another length
        kept.layer_types = [config.layer_types[block - 1] for block in blocks]
    if 0 < len(blocks) < depth and family.keep_blocks is not None:
        family.keep_blocks(kept, blocks)
    items = _items(config, blocks)
    kept.num_hidden_layers = len(blocks)
    setattr(kept, family.num_items, len(set(items)))
    if family.items(kept) != [sorted(set(items)).index(item) for item in items]:
        raise LayerNotHeldError(
            f"This {family.name} model shares weights within groups of blocks. If only blocks "
            f"{', '.join(map(str, blocks))} stay, a reloaded model would assign them to other groups.",
            hint="Keep equally many blocks of each group, or cut at another layer.",
        )
    return kept


def _items(config: PretrainedConfig, blocks: Sequence[int]) -> list[int]:
    items = family_of(config).items(config)
    return [items[block - 1] for block in blocks]


def _kept_names(config: PretrainedConfig, weights: Iterable[str], blocks: Sequence[int]) -> dict[str, str]:
    family = family_of(config)
    prefix, places = f"{family.blocks}.", {item: n for n, item in enumerate(sorted(set(_items(config, blocks))))}
    kept = {}
    for name in weights:
        if name.startswith(prefix):
            item, _, rest = name.removeprefix(prefix).partition(".")
            if int(item) in places:
                kept[name] = f"{prefix}{places[int(item)]}.{rest}"
        elif family.only_first is None or not name.startswith(f"{family.only_first}.") or 1 in blocks:
            kept[name] = name
    return kept


def parameters_kept(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Count the parameters of a model cut at each layer 0 … L, pooler excluded; None if a cut is impossible.

    config: `encoder.backbone.config`.
    """
    held, pooler = layers_held(config), f"{family_of(config).pooler}."
    named = _meta_model(config).named_parameters()
    sizes = {name: parameter.numel() for name, parameter in named if not name.startswith(pooler)}
    return tuple(
        sum(sizes[name] for name in _kept_names(config, sizes, range(1, layer + 1))) if layer in held else None
        for layer in range(config.num_hidden_layers + 1)
    )


def _meta_model(config: PretrainedConfig) -> Any:
    with torch.device("meta"):
        return AutoModel.from_config(config)


def paper_parameters(config: PretrainedConfig, layer: int) -> int:
    """Count parameters of embeddings and blocks 1 … layer as in the TMFT paper (Tables 1 and 2).

    Excluded: ELECTRA's `embeddings_project`, DeBERTa's `rel_embeddings` and convolution, final norms and poolers.
    """
    if not 0 <= layer <= config.num_hidden_layers:
        raise LayerOutOfRangeError(layer, config.num_hidden_layers)
    family, model = family_of(config), _meta_model(config)
    kept = set(_items(config, range(1, layer + 1)))  # shared blocks count once
    parts = [model.get_submodule(path) for path in family.embeddings.split(",")]
    parts += [block for item, block in enumerate(model.get_submodule(family.blocks)) if item in kept]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


# Costs

TIMED_TEXTS = 128


def operations(encoder: Encoder, blocks: int, length: float) -> float:
    """Return the floating-point operations of `blocks` blocks and all else, for a text of `length` tokens.

    Two for each weight and token, 4 · width for each pair of tokens, 16 · width for each token elsewhere.
    """
    backbone, inside = encoder.backbone, encoder.backbone.get_submodule(encoder.family.blocks)
    tables = {id(part.weight) for part in backbone.modules() if isinstance(part, torch.nn.Embedding)}
    within = {id(weight) for weight in inside.parameters()}
    others = [*backbone.parameters(), *encoder.tail.parameters()]
    rest = sum(one.numel() for one in others if one.ndim == 2 and id(one) not in tables | within)
    each = sum(one.numel() for one in inside.parameters() if one.ndim == 2) / max(1, len(list(inside.children())))
    pairs = 4 * length * encoder.width
    return length * (blocks * (2 * each + pairs) + 2 * rest + 16 * encoder.width)


def seconds_per_block(encoder: Encoder, ids: Sequence[Sequence[int]]) -> float:
    """Measure the mean time of a block for a text."""
    encoder.encode_ids(ids)  # warms up
    begin = time.perf_counter()
    encoder.encode_ids(ids)
    return (time.perf_counter() - begin) / len(ids) / encoder.depth


# Vocabularies

State = dict[str, Any]  # content of tokenizer.json
_KEEP = "Keep the full vocabulary of this model."


def keep_words(encoder: Encoder, texts: Sequence[str]) -> Encoder:
    """Return a copy of the encoder with only the word pieces that these texts need, see `kept_pieces`.

    Texts made of kept pieces keep their vectors, bitwise on the CPU in float32. Other texts are split into kept pieces.
    Raises `ModelError` if the tokenizer cannot be reduced.
    """
    texts = listed_texts(texts)
    rows = piece_ids(encoder, texts)
    pieces = kept_pieces(encoder, set().union(*rows))
    kept = keep_pieces(encoder, pieces)
    new = {piece: place for place, piece in enumerate(pieces)}
    if piece_ids(kept, texts) != [[new[piece] for piece in row] for row in rows]:
        raise ModelError(
            f"The tokenizer of {encoder.name} tokenizes these texts differently without the unused pieces.", hint=_KEEP
        )
    return kept


def piece_ids(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, with prompt and special tokens, not truncated."""
    return replace(encoder.reader, max_length=10**9).token_ids(texts)


def kept_pieces(encoder: Encoder, used: Iterable[int]) -> list[int]:
    """Return the sorted ids of `used` pieces and of all pieces that any text may need.

    Always kept: added and special tokens, prompts, single characters or bytes, intermediate pieces of merges, and the
    piece that sets the score of unknown characters. Raises as `keep_words`.
    """
    tokenizer, config = encoder.reader.tokenizer, encoder.backbone.config
    if not tokenizer.is_fast:
        raise ModelError(f"The tokenizer of {encoder.name} is not a fast one.", hint="Save it as a fast tokenizer.")
    state = _state(tokenizer)
    kind, vocabulary = state["model"]["type"], _vocabulary(state)
    if kind not in _RULES:
        raise ModelError(
            f"The tokenizer of {encoder.name} is a {kind}, which needs all of its pieces.",
            hint=f"Use a model whose tokenizer is one of {', '.join(_RULES)}.",
        )
    prompts = [prompt for prompt in (encoder.settings.get("prompts") or {}).values() if prompt]
    kept = set(used).union(tokenizer.all_special_ids, *replace(encoder.reader, settings={}).token_ids(prompts))
    kept.update(holder[place] for holder, place in _places(state))
    if encoder.family.position_offset:  # positions count from the padding id
        kept.update(range(config.pad_token_id + 1))
    pieces = {piece: name for name, piece in tokenizer.get_vocab().items()}
    words = {pieces[piece] for piece in kept.intersection(pieces)}
    kept.update(vocabulary[name] for name in _RULES[kind](tokenizer, state["model"], words) if name in vocabulary)
    return sorted(piece for piece in kept.intersection(pieces) if piece < config.vocab_size)


def keep_pieces(encoder: Encoder, pieces: Sequence[int]) -> Encoder:
    """Return a copy of the encoder with these pieces only, numbered from 0 in this order."""
    new = {piece: place for place, piece in enumerate(pieces)}
    kept = keep(encoder, range(1, encoder.depth + 1))
    kept.tokenizer = _renumbered(encoder, new)
    table, config = kept.backbone.get_input_embeddings(), kept.backbone.config
    assert isinstance(table, nn.Embedding)  # true for every family
    table.weight = nn.Parameter(table.weight.detach()[list(pieces)])
    table.num_embeddings = config.vocab_size = len(pieces)
    table.padding_idx = new.get(cast(int, table.padding_idx))
    for name, value in config.to_dict().items():
        if name.endswith("_token_id") and value is not None:
            ids = [new[piece] for piece in value if piece in new] if isinstance(value, list) else new.get(value)
            setattr(config, name, ids)
    return kept


def _state(tokenizer: PreTrainedTokenizerBase) -> State:
    return cast(State, json.loads(cast(Any, tokenizer).backend_tokenizer.to_str()))


def _vocabulary(state: State) -> dict[str, int]:
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, list):
        return {name: piece for piece, (name, _) in enumerate(vocabulary)}
    return cast("dict[str, int]", vocabulary)


def _is_single(name: str) -> bool:
    return len(name) == 1 or (len(name) == 6 and name.startswith("<0x") and name.endswith(">"))


def _for_word_piece(tokenizer: PreTrainedTokenizerBase, model: State, _: set[str]) -> Iterator[str]:
    """Yield pieces of one character, and pieces that begin with an unknown character.

    Raises `ModelError` for unknown characters elsewhere: in a smaller vocabulary, such words could become unknown.
    """
    prefix, vocabulary, special = model["continuing_subword_prefix"], model["vocab"], set(tokenizer.all_special_tokens)
    for name in vocabulary:
        inside = name.startswith(prefix) and name != prefix
        body = name.removeprefix(prefix) if inside else name
        unknown = [n for n, char in enumerate(body) if (prefix if inside or n else "") + char not in vocabulary]
        if len(body) == 1 or unknown == [0]:
            yield name
        elif unknown and name not in special and _is_word(tokenizer, f"a{body}" if inside else body):
            raise ModelError(
                f"The word piece {name} contains {body[unknown[-1]]}, which is no piece of its own: "
                "in a smaller vocabulary, words with it could become unknown.",
                hint=_KEEP,
            )


def _is_word(tokenizer: Any, text: str) -> bool:
    normalizer, splitter = tokenizer.backend_tokenizer.normalizer, tokenizer.backend_tokenizer.pre_tokenizer
    kept = normalizer is None or normalizer.normalize_str(text) == text
    return kept and (splitter is None or len(splitter.pre_tokenize_str(text)) == 1)


def _for_unigram(_: PreTrainedTokenizerBase, model: State, __: set[str]) -> Iterator[str]:
    """Yield characters, pieces with unknown ones, and the piece that sets their score."""
    vocabulary = model["vocab"]
    yield min(vocabulary, key=lambda entry: entry[1])[0]
    if model["unk_id"] is not None:
        yield vocabulary[model["unk_id"]][0]
    single = {name for name, _ in vocabulary if _is_single(name)}
    yield from (name for name, _ in vocabulary if name in single or not single.issuperset(name))


def _for_bpe(_: PreTrainedTokenizerBase, model: State, words: set[str]) -> Iterator[str]:
    """Yield characters, bytes, and the intermediate pieces of merges.

    Merges never cross final pieces, so each piece in `words` is merged alone.
    """
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise ModelError("This BPE tokenizer uses a subword prefix or an end-of-word suffix.", hint=_KEEP)
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
    if model["unk_token"] is not None:
        yield model["unk_token"]
    yield from filter(_is_single, model["vocab"])
    for name in words:
        parts, last = list(name), len(ranks)
        while len(parts) > 1:
            rank, place = min((ranks.get(pair, last), place) for place, pair in enumerate(pairwise(parts)))
            if rank == last:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            yield parts[place]


_RULES: dict[str, Callable[[PreTrainedTokenizerBase, State, set[str]], Iterator[str]]] = {
    "WordPiece": _for_word_piece,
    "Unigram": _for_unigram,
    "BPE": _for_bpe,
}


def _places(state: State) -> Iterator[tuple[Any, Any]]:
    yield from ((token, "id") for token in state["added_tokens"])
    if state["padding"] is not None:
        yield state["padding"], "pad_id"
    processors = [state["post_processor"] or {}]
    for processor in processors:
        processors += processor.get("processors", ())
        for token in processor.get("special_tokens", {}).values():
            yield from ((token["ids"], place) for place in range(len(token["ids"])))
        yield from ((processor[end], 1) for end in ("sep", "cls") if end in processor)


def _renumbered(encoder: Encoder, new: dict[int, int]) -> PreTrainedTokenizerBase:
    state = _state(encoder.reader.tokenizer)
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] in new]
    for holder, place in _places(state):
        holder[place] = new.get(holder[place], 0)
    model, vocabulary = state["model"], _vocabulary(state)
    if isinstance(model["vocab"], list):
        model["vocab"] = [entry for piece, entry in enumerate(model["vocab"]) if piece in new]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {name: new[piece] for name, piece in vocabulary.items() if piece in new}
    if "merges" in model:
        known = model["vocab"]
        model["merges"] = [
            [left, right] for left, right in model["merges"] if {left, right, left + right} <= known.keys()
        ]
    return cast(PreTrainedTokenizerBase, with_rules(encoder.reader.tokenizer, Tokenizer.from_str(json.dumps(state))))


# Number of texts that are sorted by length together.
WINDOW_TEXTS = 16_384
# Tokens per batch, with padding; 13 layers of width 768 take 330 MB.
BATCH_TOKENS = 8_192


StateBatch = tuple[list[int], Tensor, tuple[Tensor, ...], Tensor]
"""Indices of the batch's texts, pooled states (L', b, d) in float32 on the CPU, and on the device, L' token states
(b, t, d) and the mask (b, t)."""


def iter_states(
    encoders: Sequence[Encoder],
    texts: Sequence[str],
    *,
    pooling: PoolingMode | None = None,
    raw: RawStates = False,
    prompt: bool = True,
    batch_size: int = 64,
    progress: Progress = silent,
) -> Iterator[tuple[StateBatch, ...]]:
    """Yield batches with the states of all layers of each encoder, sorted by text length.

    batch_size: Maximum texts per batch, see also `BATCH_TOKENS`. raw: See `Encoder.hidden_states`. Raises `UsageError`.
    """
    if pooling is not None:
        check_pooling(pooling)
    task = "Computing states of " + " and ".join(encoder.name for encoder in encoders)
    done = 0
    for start in range(0, len(texts), WINDOW_TEXTS):
        window = texts[start : start + WINDOW_TEXTS]
        ids = [encoder.token_ids(window, prompt=prompt) for encoder in encoders]
        lengths = [max(map(len, rows)) for rows in zip(*ids, strict=True)]
        for chunk in length_batches(lengths, batch_size, BATCH_TOKENS):

            def read(part: Sequence[int]) -> tuple[StateBatch, ...]:
                results, places = [], [start + place for place in part]  # noqa: B023  # called in this iteration
                for encoder, rows in zip(encoders, ids, strict=True):  # noqa: B023  # as above
                    with torch.inference_mode(), evaluating(encoder):
                        batch = encoder.pad([rows[place] for place in part])
                        mask, hidden = batch["attention_mask"], encoder.hidden_states(batch, raw=raw)
                        pooled = [pool(layer, mask, pooling or encoder.state_pooling).float().cpu() for layer in hidden]
                    results.append((places, torch.stack(pooled), hidden, mask))  # callers may change the states
                return tuple(results)

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

    pooling: By default the encoder's `state_pooling`.
    raw: Omit the final norm, see `Encoder.hidden_states`.
    up_to: Highest layer to compute, by default the last.
    prompt: Prepend the model's default prompt.

    Raises:
        UsageError: Invalid pooling, batch size or text.
        LayerOutOfRangeError: `up_to` does not exist.
        LayerNotHeldError: The model cannot be cut at `up_to`.
    """
    progress, texts = reporter(progress), listed_texts(texts)
    if up_to is not None:
        full, encoder = encoder, truncate(encoder, up_to, copy_weights=False)
        # Below the last layer raw states have no final norm.
        if raw and up_to < full.depth and encoder.family.final_norm is not None:
            encoder.backbone.set_submodule(encoder.family.final_norm, nn.Identity())
    states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
    options: dict[str, Any] = {"pooling": pooling, "raw": raw, "prompt": prompt, "batch_size": batch_size}
    for ((places, pooled, _, _),) in iter_states([encoder], texts, progress=progress, **options):
        states[:, places] = pooled
    return states


Call = tuple[nn.Module, list[Any], dict[str, Any]]


class BlockRunner:
    """Run single blocks of an encoder on one batch, with the same results as `keep(encoder, blocks)`.

    `run(3, run(1, runner.embedded))` serves all subsets that start with 1 and 3.

    Attributes:
        embedded: States before block 1, (b, t, d).
        mask: Attention mask of the batch.
        calls: Module and arguments of each block, without states.
    """

    @torch.inference_mode()
    def __init__(self, encoder: Encoder, batch: Batch) -> None:
        """Run the encoder once, and record the call of each block."""
        blocks = list(encoder.backbone.get_submodule(encoder.family.blocks).children())
        first_only = next(
            (m for name, m in encoder.backbone.named_modules() if name == encoder.family.only_first), None
        )
        self.calls, self._first_only, self.embedded = list[Call](), list[Call](), torch.empty(0)

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state, *others = args or (kwargs["hidden_states"],)
            if not self.calls:
                self.embedded = state
            kwargs = {name: value for name, value in kwargs.items() if name != "hidden_states"}
            (self._first_only if module is first_only else self.calls).append((module, others, kwargs))

        with contextlib.ExitStack() as hooks:
            for module in blocks if first_only is None else [*blocks, first_only]:
                hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
            encoder.token_states(batch["input_ids"], batch["attention_mask"])
        self.mask, self._encoder = batch["attention_mask"], encoder

    @torch.inference_mode()
    def run(self, block: int, states: Tensor) -> Tensor:
        """Return the states (b, t, d) after `block` (from 1)."""
        module, args, kwargs = self.calls[block - 1]
        output = module(states, *args, **kwargs)
        after: Tensor = output if isinstance(output, Tensor) else output[0]
        if block == 1 and self._first_only:  # takes the input and output of block 1
            module, args, kwargs = self._first_only[0]
            after = module(states, after, *args[1:], **kwargs)
        return after

    @torch.inference_mode()
    def vectors(self, states: Tensor) -> Tensor:
        """Return sentence vectors (b, out) from the states after the last kept block."""
        norm = self._encoder.final_norm
        return self._encoder.from_states(states if norm is None else norm(states), self.mask)
