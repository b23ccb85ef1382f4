"""Tiny models whose tokenizers split words, of every kind and with the special tokens of each family."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    AutoModel,
    BertTokenizer,
    CamembertTokenizer,
    DebertaV2Tokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from tests.support.families import TINY_CONFIGS

SYLLABLES = ["ka", "to", "mi", "ser", "an", "dol", "e", "ru", "shi", "pen", "ß", "ö", "ing", "s"]
OTHER = ["2026", "don't", "日本", "naïve", "x,y", "(so)", "…", "CAPS"]
OF_KIND = {
    "word-piece": "bert electra mpnet",
    "unigram": "xlm-roberta camembert albert deberta-v3",
    "byte-level": "roberta modernbert gpt2 qwen2",
    "ignore-merges": "qwen3",
    "byte-fallback": "llama embeddinggemma",
}
KINDS = {name: kind for kind, names in OF_KIND.items() for name in names.split()}


# Classes that build the tokenizer anew from its vocabulary when they read it; the other families have what is saved.
CLASSES: dict[str, Any] = {
    "bert": BertTokenizer,
    "mpnet": MPNetTokenizer,
    "xlm-roberta": XLMRobertaTokenizer,
    "camembert": CamembertTokenizer,
    "albert": AlbertTokenizer,
    "deberta-v3": DebertaV2Tokenizer,
    "roberta": RobertaTokenizer,
    "gpt2": GPT2Tokenizer,
    "qwen2": Qwen2Tokenizer,
    "llama": LlamaTokenizer,
    "embeddinggemma": GemmaTokenizer,
}


def sentences(number: int, seed: int) -> list[str]:
    """Sentences of words made of syllables, some words more frequent than others."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(120)] + OTHER
    return [" ".join(words[int(len(words) * draw.random() ** 2)] for _ in range(8)) for _ in range(number)]


def splitting_tokenizer(kind: str, made_as: Any = None) -> PreTrainedTokenizerBase:
    """A tokenizer trained on `sentences`, about 300 pieces, whose padding id is 1 as in RoBERTa.

    made_as: one of `CLASSES`, None for a plain one.
    """
    trainer: Any
    special = ["<s>", "<pad>", "</s>", "<unk>" if kind != "word-piece" else "[UNK]", "<mask>"]
    texts, unknown = sentences(400, 0), special[3]
    if kind == "word-piece":
        backend = Tokenizer(models.WordPiece(unk_token=unknown))
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    elif kind in ("byte-level", "ignore-merges"):
        backend = Tokenizer(models.BPE(ignore_merges=kind == "ignore-merges"))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet)
    elif kind == "byte-fallback":
        backend = Tokenizer(models.BPE(byte_fallback=True, unk_token=unknown, fuse_unk=True))
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, limit_alphabet=20)
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token=unknown)
    backend.train_from_iterator(texts, trainer)
    # Trainers number the pieces of these kinds anew in each process: sorted, a seed draws the same model.
    pieces = special + sorted(set(backend.get_vocab()) - set(special))
    if kind == "word-piece":
        backend.model = models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token=unknown)
    elif kind == "unigram":
        scores = dict(json.loads(backend.to_str())["model"]["vocab"])
        backend.model = models.Unigram([(piece, round(scores[piece], 3)) for piece in pieces], special.index(unknown))
    if kind == "byte-level":  # as RoBERTa has it; the others have templates
        backend.post_processor = processors.Sequence(
            [processors.ByteLevel(), processors.RobertaProcessing(("</s>", 2), ("<s>", 0))]
        )
    else:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    names: dict[str, Any] = dict(
        zip(["bos_token", "pad_token", "eos_token", "unk_token", "mask_token"], special, strict=False)
    )
    names |= {"cls_token": "<s>", "sep_token": "</s>", "model_max_length": 36}
    if made_as is None:
        return PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    model = json.loads(backend.to_str())["model"]
    if "merges" in model:
        names["merges"] = [tuple(merge) for merge in model["merges"]]
    vocab = model["vocab"]
    made: PreTrainedTokenizerBase = made_as(vocab=[*map(tuple, vocab)] if isinstance(vocab, list) else vocab, **names)
    return made


def make_splitting(name: str, folder: Path) -> Path:
    """Save a random model of the named row of `TINY_CONFIGS` with a tokenizer that splits words; returns the folder."""
    tokenizer, config = splitting_tokenizer(KINDS[name], CLASSES.get(name)), copy.deepcopy(TINY_CONFIGS[name])
    tokenizer.add_tokens(["<added>"])
    config.vocab_size = len(tokenizer) + 7  # rows that no token has, as in many models
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 1, 0, 2
    if config.model_type == "modernbert":
        config.cls_token_id, config.sep_token_id = 0, 2
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
