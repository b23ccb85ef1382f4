"""Tiny random models of every family, built locally from configurations."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    CamembertConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    Gemma3TextConfig,
    GPT2Config,
    GteConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    XLMRobertaConfig,
)

WORDS = [
    "a", "the", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "big", "small", "red", "blue", "and", "not",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = 32
_SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
    "vocab_size": VOCABULARY, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "use_bidirectional_attention": True,
}  # fmt: skip
_SLIDING: dict[str, Any] = {
    "num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
}  # fmt: skip
_DISENTANGLED: dict[str, Any] = {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16,
}  # fmt: skip
_DISENTANGLED_V2: dict[str, Any] = _DISENTANGLED | {"type_vocab_size": 0, "position_biased_input": False}
_DISENTANGLED_V3 = _DISENTANGLED_V2 | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
_CONVOLUTION = _DISENTANGLED | {"conv_kernel_size": 3, "conv_act": "gelu"}

TINY_CONFIGS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**_SIZES),
    "electra": ElectraConfig(**_SIZES, embedding_size=16),
    "electra-generator": ElectraConfig(**_SIZES, embedding_size=8),
    "roberta": RobertaConfig(**_SIZES),
    "xlm-roberta": XLMRobertaConfig(**_SIZES),
    "camembert": CamembertConfig(**_SIZES),
    "distilbert": DistilBertConfig(
        dim=16, n_layers=3, n_heads=2, hidden_dim=32, vocab_size=VOCABULARY, max_position_embeddings=40, pad_token_id=0
    ),
    "mpnet": MPNetConfig(**_SIZES),
    "albert": AlbertConfig(**_SIZES, embedding_size=8),
    "albert-grouped": AlbertConfig(**_SIZES, embedding_size=8, num_hidden_groups=3),
    "deberta": DebertaConfig(**_SIZES, **_DISENTANGLED),
    "deberta-v2": DebertaV2Config(**_SIZES, **_DISENTANGLED_V2),
    "deberta-v3": DebertaV2Config(**_SIZES, **_DISENTANGLED_V3),
    "deberta-v2-convolution": DebertaV2Config(**_SIZES, **_CONVOLUTION),
    "modernbert": ModernBertConfig(**_SIZES, cls_token_id=2, sep_token_id=3, local_attention=4),
    "gpt2": GPT2Config(
        n_embd=16, n_layer=3, n_head=2, vocab_size=VOCABULARY, n_positions=40, bos_token_id=2, eos_token_id=3
    ),
    "qwen2": Qwen2Config(**_SIZES, **_SLIDING),
    "qwen3": Qwen3Config(**_SIZES, **_SLIDING, head_dim=8),
    "llama": LlamaConfig(**_SIZES, num_key_value_heads=2),
    "mistral": MistralConfig(**_SIZES, num_key_value_heads=1, sliding_window=4),
    "embeddinggemma": Gemma3TextConfig(**_SIZES, **_GEMMA),
    "nomic-bert": NomicBertConfig(**_SIZES),
    "gte": GteConfig(**_SIZES),
}
_CLASSES: dict[str, Any] = {"electra": ElectraForPreTraining, "electra-generator": ElectraForMaskedLM}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words of `WORDS`; everything else is unknown."""
    vocabulary = {word: place for place, word in enumerate(SPECIAL + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, eos_token="[SEP]", model_max_length=36)


def make_tiny(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a random model of the named row of `TINY_CONFIGS` with a tokenizer; returns the folder."""
    torch.manual_seed(seed)
    config = TINY_CONFIGS[name]
    model = _CLASSES[name](config) if name in _CLASSES else AutoModel.from_config(config)
    for parameter in model.parameters():  # wide enough that a wrong layer cannot hide in rounding
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


TEXTS = [
    "the cat sat on the mat and the dog ran under a tree",
    "a red dog",
    "the big cat sat under the small blue tree",
]
EAGER_ONLY = {"mpnet", "deberta", "deberta-v2"}
ATTENTION_CASES = [
    (name, attention)
    for name, config in TINY_CONFIGS.items()
    for attention in ("eager", "sdpa")
    if attention == "eager" or config.model_type not in EAGER_ONLY
]
"""Every family with each way to compute attention that transformers has for it."""

PLAIN_POOLING: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(0),
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0).values,
    "last": lambda states: states[-1],
}
"""How the states (t, d) of one text without padding become its vector."""


@functools.cache  # nobody changes the folders
def plain_states(folder: Path, text: str, *, normed: bool = True) -> list[Tensor]:
    """Return the token states (t, d) of all layers of one text, without padding, by transformers alone.

    normed: Apply the final norm to every layer, if the model has one; else to the last layer only.
    """
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), PreTrainedTokenizerFast.from_pretrained(folder)
    with torch.no_grad():
        states = plain_batch_states(model, normed=normed, input_ids=torch.tensor([tokenizer(text)["input_ids"]]))
    return [state[0] for state in states]


def plain_batch_states(model: Any, *, normed: bool = True, **batch: Tensor) -> list[Tensor]:
    """Return the token states (b, t, d) of all layers by transformers alone."""
    norms = [getattr(model, name) for name in ("final_norm", "ln_f", "norm") if normed and hasattr(model, name)]
    output = model(**batch, output_hidden_states=True)
    return [*(norms[0](state) if norms else state for state in output.hidden_states[:-1]), output.last_hidden_state]
