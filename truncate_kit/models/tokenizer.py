"""The tokenizer in a model folder, and how many tokens of a text the model takes."""

import json
import math
import re
from pathlib import Path

from transformers import AutoTokenizer, PretrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer

from truncate_kit.errors import ModelError, UsageError, first_line
from truncate_kit.models.families import family_of
from truncate_kit.models.model_folder import load_config, say_of_own_code
from truncate_kit.models.module_files import read_json
from truncate_kit.models.pipeline import Pipeline, read_pipeline
from truncate_kit.models.text_reader import TextReader, is_of_tokenizer, usable_length
from truncate_kit.models.transformers_logging import quiet_transformers
from truncate_kit.settings import Bounds, check_whole, shown

_SENTENCE_PIECES = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_MOST_GROWTH = 100  # letters for one; normalizers in use write three or so
_MOST_ADDED = 30_000  # tokens beside the vocabulary, read in seconds; models in use add up to some thousand
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_ADDED = ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens")
_ADDED_TOKEN = re.compile(rb'"single_word"\s*:')  # in tokenizer.json, which is too large to be parsed twice
_PROBE = "a \ue000"  # a letter, and one that no vocabulary has
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *_SENTENCE_PIECES)


def load_reader(folder: Path) -> TextReader:
    """What turns texts into ids in a saved model folder, without its weights. Raises `ModelError`."""
    pipeline = read_pipeline(folder)
    return reader_of(pipeline, load_config(pipeline.transformer))


def reader_of(pipeline: Pipeline, config: PretrainedConfig, max_length: int | None = None) -> TextReader:
    """What turns texts into ids for a model of this configuration; `max_length` None is the model's own limit."""
    if max_length is not None:
        max_length = check_whole("max_length", max_length)
    tokenizer, positions = load_tokenizer(pipeline.transformer), position_limit(config)
    entries = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    if entries > config.vocab_size:
        raise ModelError(
            f"The tokenizer in {pipeline.transformer} has {entries:,} entries, but the model embeds only "
            f"{config.vocab_size:,}.",
            hint="They belong to different models; save the right tokenizer beside the weights.",
        )
    if max_length is not None and not 2 <= max_length <= (positions or max_length):
        has, to = (f": this model has {positions} positions", f" to {positions}") if positions else ("", " upwards")
        raise UsageError(f"A maximum length of {max_length} does not fit{has}.", hint=f"Use a number from 2{to}.")
    reader = TextReader(
        tokenizer=tokenizer,
        # sentence-transformers puts its own limit in the place of the tokenizer's.
        max_length=max_length or usable_length(pipeline.max_length or tokenizer.model_max_length, positions),
        lower_case=pipeline.lower_case,
        settings=pipeline.settings,
    )
    _check_ids(pipeline.transformer, reader.token_ids([_PROBE], prompt=False)[0], reader.max_length, config.vocab_size)
    return reader


def _check_ids(folder: Path, ids: list[int], most: int, vocab_size: int) -> None:
    """Raise `ModelError` where the ids of a text are not this model's; the vocabulary need not hold special tokens."""
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong or len(ids) > most:
        found = f"the id {wrong[0]:,}" if wrong else f"{len(ids):,} tokens"
        raise ModelError(
            f"The tokenizer in {folder} gives a short text {found}, but the model takes {most:,} tokens with "
            f"ids below {vocab_size:,}.",
            hint="They belong to different models; save the right tokenizer beside the weights.",
        )


def position_limit(config: PretrainedConfig) -> int | None:
    """Tokens that the position table can hold; None where positions are relative only."""
    if getattr(config, "position_biased_input", True) is False:
        return None
    positions = getattr(config, "max_position_embeddings", None)
    offset = family_of(config).position_offset
    return None if positions is None else int(positions) - (0 if offset is None else offset(config))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer saved in `folder`, padding on the right. Raises `ModelError` when there is none or it is broken."""
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}).",
            hint="Save the tokenizer of the model into the same folder.",
        )
    _check_settings(folder)
    try:
        with quiet_transformers():
            tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except BaseException as error:
        if not is_of_tokenizer(error):
            raise
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"The tokenizer in {folder} brings its own code (auto_map in tokenizer_config.json), which is not run.",
                hint="Use a model whose tokenizer is one of transformers' own, or save it again as one of them.",
            ) from error
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {first_line(error)}.", hint="Download or save it again."
        ) from error
    if not isinstance(tokenizer, Tokenizer):
        raise ModelError(
            f"The tokenizer in {folder} is a {type(tokenizer).__name__}, which reads no single texts.",
            hint="Save a tokenizer of the model's own architecture beside it.",
        )
    if not Bounds(-math.inf, math.inf, whole=False).holds(tokenizer.model_max_length):
        raise ModelError(
            f"The tokenizer in {folder} says model_max_length {shown(tokenizer.model_max_length)}.",
            hint="It is a number of tokens; download or save the tokenizer again.",
        )
    _check_growth(folder, tokenizer)
    _check_words(folder, tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer in {folder} has neither a padding nor an end token.", hint="Give it a pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token  # masked out everywhere, so its value never matters
    return tokenizer


def _check_settings(folder: Path) -> None:
    """Raise `ModelError` for a key that is there twice, and for more added tokens than `_MOST_ADDED`."""
    added = [0]  # in each file: they repeat each other
    for name in _TOKENIZER_SETTINGS:
        if (folder / name).is_file() and isinstance(values := read_json(folder / name), dict):
            say_of_own_code(folder / name, values)
            parts = [values] if name == "added_tokens.json" else [values.get(key) for key in _ADDED]
            added.append(sum(len(part) for part in parts if isinstance(part, dict | list)))
    if (folder / "tokenizer.json").is_file():
        added.append(len(_ADDED_TOKEN.findall((folder / "tokenizer.json").read_bytes())))
    if max(added) > _MOST_ADDED:
        raise ModelError(
            f"The tokenizer in {folder} adds {max(added):,} tokens; at most {_MOST_ADDED:,} are read.",
            hint="Save it with those that texts are made of in the vocabulary itself.",
        )


def _check_words(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise `ModelError` where two words have one id, or words are taken apart at random.

    Of two words with one id only one would be in a model that is saved again.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and getattr(backend.model, "dropout", None):
        raise ModelError(
            f"The tokenizer in {folder} leaves out merges at random (dropout {backend.model.dropout:.3g}), so a text "
            "has other ids each time.",
            hint="Set dropout to null in its tokenizer.json.",
        )
    words = {} if backend is None else backend.get_vocab(with_added_tokens=False)
    if len(set(words.values())) < len(words):
        raise ModelError(
            f"The tokenizer in {folder} gives one id to two of its {len(words):,} words.",
            hint="Download or save the tokenizer again.",
        )


def _check_growth(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise `ModelError` where a tokenizer grows a short text until it fills the memory."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    steps = [json.loads(normalizer.__getstate__())] if normalizer is not None else []
    growth = 1
    while steps:
        step = steps.pop()
        steps += step.get("normalizers") or []
        growth *= max(1, len(step.get("content") or ""), len(step.get("prepend") or ""))
    if growth > _MOST_GROWTH:
        raise ModelError(
            f"The tokenizer in {folder} writes up to {shown(growth)} letters for one.",
            hint="Do not use this folder unless you know who made it: a short text would fill the memory.",
        )
