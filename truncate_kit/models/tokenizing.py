"""Read and write tokenizers exactly as in tokenizer.json, of which transformers' classes drop parts."""

import copy
import json
import re
from pathlib import Path
from typing import Any, cast

from tokenizers import Regex, Tokenizer, models, normalizers
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS, import_protobuf

from truncate_kit.core.errors import ModelError, first_line
from truncate_kit.core.files import read_json, write_json

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_VOCABULARIES = (
    _FILE, "vocab.txt", "vocab.json", "spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
# Classes that heeded `add_eos_token` in transformers 4.
_WITH_END = re.compile("(Code)?Llama|Gemma|Cohere")


def load_tokenizer(folder: Path, vocab_size: int) -> PreTrainedTokenizerBase:
    """Load a tokenizer that pads on the right; its ids are those of tokenizer.json, if there is one.

    transformers 5 rebuilds a tokenizer from its class and drops what the class does not know.

    Raises:
        ModelError: The tokenizer is missing, damaged, or does not fit `vocab_size`.
    """
    if not any((folder / file).exists() for file in _VOCABULARIES):
        hint = f"Save the model's tokenizer into the same folder, as one of {', '.join(_VOCABULARIES)}."
        raise ModelError(f"{folder} has no tokenizer.", hint=hint)
    try:
        made, own = _read(folder)
    except Exception as error:  # from KeyError to Rust panics
        hint = "Download or save it again. It must be a tokenizer class of transformers: custom code is never run."
        raise ModelError(f"The tokenizer in {folder} cannot be read: {first_line(error)}.", hint=hint) from error
    added = made.added_tokens_decoder if own is None else own.get_added_tokens_decoder()
    vocabulary = made.get_vocab() if own is None else own.get_vocab()
    if vocabulary.keys() <= {token.content for token in added.values()}:  # transformers found no file of its class
        hint = f"Name the class of its vocabulary in {_SETTINGS}: tokenizer_class BertTokenizer reads a vocab.txt."
        raise ModelError(f"{type(made).__name__} reads no vocabulary in {folder}, only special tokens.", hint=hint)
    beyond = {piece for piece in vocabulary.values() if piece >= vocab_size}
    if not beyond <= added.keys():
        problem = (
            f"The tokenizer in {folder} has {1 + max(beyond):,} entries, but the model embeds only {vocab_size:,}."
        )
        hint = "Tokenizer and weights belong to different models; save the model's tokenizer in this folder."
        raise ModelError(problem, hint=hint)
    tokenizer = made
    if own is not None and not (made.is_fast and rules_of(made.backend_tokenizer) == rules_of(own)):
        tokenizer = with_rules(made, own)
    if (folder / _FILE).exists():
        tokenizer.own_file = (folder / _FILE).read_bytes()
    if beyond:  # fine while no text has them
        tokenizer.num_embedded = vocab_size
        if tokenizer.pad_token_id in beyond:
            tokenizer.pad_token = None
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # padding is always masked
    _add_end_token(folder, tokenizer)
    return cast(PreTrainedTokenizerBase, tokenizer)


def _add_end_token(folder: Path, tokenizer: Any) -> None:
    """Add the end token that only tokenizer_config.json asks for, as transformers 4 did.

    Models such as e5-mistral-7b-instruct pool this token.
    """
    values = _settings_of(folder)
    kind, own_code = str(values.get("tokenizer_class") or ""), bool(values.get("auto_map"))
    if values.get("add_eos_token") is not True or not (own_code or _WITH_END.match(kind)):
        return
    ids = tokenizer("a")["input_ids"]
    if tokenizer.eos_token is not None and ids[-1:] != [tokenizer.eos_token_id]:
        tokenizer.add_bos_token = ids[:1] == [tokenizer.bos_token_id]
        tokenizer.add_eos_token = True


def _settings_of(folder: Path) -> dict[str, Any]:
    path = folder / _SETTINGS
    return cast("dict[str, Any]", read_json(path)) if path.is_file() else {}


def _read(folder: Path) -> tuple[Any, Tokenizer | None]:
    own = Tokenizer.from_file(str(folder / _FILE)) if (folder / _FILE).exists() else None
    try:
        made: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception:  # the class cannot hold this kind of tokenizer
        if own is None:
            raise
        made = PreTrainedTokenizerFast.from_pretrained(folder)
    pieces = [folder / name for name in _VOCABULARIES if name.endswith(".model") and (folder / name).exists()]
    return _of_sentencepiece(pieces[0], made) if pieces and own is None else (made, own)


def _of_sentencepiece(file: Path, made: Any) -> tuple[Any, Tokenizer]:
    """Return a tokenizer and the rules of its sentencepiece model, of which transformers 5 drops some."""
    proto = import_protobuf().ModelProto.FromString(file.read_bytes())
    spec, kind = proto.normalizer_spec, SLOW_TO_FAST_CONVERTERS.get(type(made).__name__)
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    if unigram and kind is not None:
        made.vocab_file, made.add_prefix_space = str(file), spec.add_dummy_prefix
        with_bytes = {"handle_byte_fallback": proto.trainer_spec.byte_fallback}
        rules: Tokenizer = type("", (kind,), with_bytes)(made).converted()
        if not spec.remove_extra_whitespaces:
            steps = [step for step in rules.normalizer if not re.search(r"Strip\(| \{2,\}", str(step))]
            rules.normalizer = normalizers.Sequence(steps)
    elif unigram or not isinstance(made.backend_tokenizer.model, models.BPE):
        raise ValueError(f"{type(made).__name__} does not read the kind of pieces in {file.name}")
    else:
        if type(made) in (PreTrainedTokenizerFast, LlamaTokenizer):
            # With a start token by default, as before transformers 5.
            settings = _settings_of(file.parent)
            ends = {f"add_{end}_token": settings.get(f"add_{end}_token", end == "bos") for end in ("bos", "eos")}
            made = LlamaTokenizer.from_pretrained(file.parent, **ends)
        rules = copy.deepcopy(made.backend_tokenizer)
        steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
        if spec.remove_extra_whitespaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        steps += [normalizers.Prepend("▁")] * spec.add_dummy_prefix
        rules.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        rules.pre_tokenizer = None
    for piece, token in sorted(made.added_tokens_decoder.items()):
        rules.add_tokens([token])
        if rules.token_to_id(token.content) != piece:
            raise ValueError(f"{token.content} has no place in {file.name}")
    return made, Tokenizer.from_str(rules.to_str())  # scores as a reload gives them


def rules_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer.json without truncation and padding, which vary by tokenizer call."""
    return {
        name: part for name, part in json.loads(tokenizer.to_str()).items() if name not in ("truncation", "padding")
    }


def with_rules(made: Any, rules: Tokenizer) -> Any:
    """Return a tokenizer with these rules and the settings and special tokens of `made`."""
    special = {name: token for name, token in made.special_tokens_map.items() if rules.token_to_id(token) is not None}
    names = ("model_max_length", "truncation_side", "model_input_names", "split_special_tokens", "chat_template")
    settings = {name: getattr(made, name) for name in names}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **special, **settings)
    tokenizer._tokenizer = rules  # nothing added
    rules.encode_special_tokens = tokenizer.split_special_tokens
    return tokenizer


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer; its original tokenizer.json is copied unless the rules were changed."""
    tokenizer.save_pretrained(folder)
    settings = read_json(folder / _SETTINGS) | {"truncation_side": tokenizer.truncation_side}
    if settings["tokenizer_class"] == "TokenizersBackend":  # this name is unknown before transformers 5
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / _SETTINGS, settings)
    content = getattr(tokenizer, "own_file", b"")
    if content and rules_of(Tokenizer.from_buffer(content)) == rules_of(tokenizer.backend_tokenizer):
        (folder / _FILE).write_bytes(content)
