"""The digest changes with everything that affects vectors or training, and with that only."""

import copy
import shutil
from functools import partial

import pytest
import torch
from tokenizers import normalizers, processors
from torch import nn
from transformers import BertJapaneseTokenizer, PhobertTokenizer

from tests.support.families import SPECIAL, WORDS
from tests.support.files import edit_json
from tests.support.heads import make_heads
from tests.support.word_pieces import make_splitting, sentences
from truncate_kit.models.layer_pooling import LayerAttentionPooling, LayerPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Dense, Normalize, save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.tokenizing import write_tokenizer

# All fields of a configuration that may differ between two models of the same vectors and the same training.
FREE = {
    "_name_or_path", "architectures", "dtype", "transformers_version", "output_hidden_states", "output_attentions",
    "return_dict", "use_cache", "id2label", "label2id", "problem_type",
}  # fmt: skip
FREE_HEADS = ("classifier_", "summary_")  # of heads that are not loaded
FAMILIES = ["bert", "distilbert", "deberta-v3", "modernbert", "gpt2", "embeddinggemma"]  # unlike configurations
TEXTS = ["the cat sat on the mat and the dog ran under a tree", "a red dog", "The CAT sat"]


def changed(value):
    if isinstance(value, bool | int | float):
        return not value if isinstance(value, bool) else value + 1
    return value | {"more": 1} if isinstance(value, dict) else [*value, "x"] if isinstance(value, list) else f"{value}x"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_the_configuration_counts_but_bookkeeping(family, tiny_folder):
    encoder = load_encoder(tiny_folder(family))
    config, before = encoder.backbone.config, encoder_digest(encoder)
    # DistilBERT and GPT-2 name some sizes in their own way, so what counts is what the configuration writes.
    fields = {name: config.__dict__[name] for name in config.to_dict() if name in config.__dict__}
    assert len(fields) > 20
    kept = {name for name in fields if name not in FREE and not name.startswith(FREE_HEADS)}
    flipped = set()
    for name, value in fields.items():
        config.__dict__[name] = changed(value)
        if encoder_digest(encoder) != before:
            flipped.add(name)
        config.__dict__[name] = value
    assert flipped == kept
    assert encoder_digest(encoder) == before


def test_every_weight_counts_with_its_type_and_its_place(encoder):
    before = encoder_digest(encoder)
    for name, weight in encoder.state_dict().items():
        last = weight.view(-1)[-1].clone()
        weight.view(-1)[-1] += 1e-6
        assert encoder_digest(encoder) != before, name
        weight.view(-1)[-1] = last
    assert encoder_digest(encoder) == before
    assert encoder_digest(copy.deepcopy(encoder).to(torch.bfloat16)) != before


def _set(**values):
    def edited(encoder):
        for name, value in values.items():
            setattr(encoder, name, value)

    return edited


def _no_start_token(encoder):
    end = encoder.tokenizer.sep_token
    places = [(end, encoder.tokenizer.sep_token_id)]
    template = processors.TemplateProcessing(single=f"$A {end}", special_tokens=places)
    encoder.tokenizer.backend_tokenizer.post_processor = template


def _truncate_left(encoder):
    encoder.max_length = 5
    encoder.tokenizer.truncation_side = "left"


def _seeded(kind, *arguments, **options):
    torch.manual_seed(0)
    return kind(*arguments, **options)


def _pooled(settings, encoder):
    encoder.pool_with(_seeded(LayerPooling if "layers" in settings else LayerAttentionPooling, 16, **settings))


PROMPTS = {"prompts": {"query": "a dog and "}, "default_prompt_name": "query"}
CHANGES = {
    "pooling": _set(pooling="max"),
    "length": _set(max_length=5),
    "casing": _set(lower_case=True),
    "default prompt": _set(settings=PROMPTS),
    "combination": lambda encoder: encoder.combine_layers((1, 3)),
    "another combination": lambda encoder: encoder.combine_layers((0, 3)),
    "concatenated": _set(pooling="concat"),
    **{str(one): partial(_pooled, one) for one in ({}, {"layers": (1, 3)}, {"layers": (2, 3)})},
    **{str(one): partial(_pooled, {"layers": (1, 3)} | one) for one in ({"over": "mean"}, {"tokens": "cls"})},
    "unit length": _set(tail=nn.Sequential(Normalize())),
    "dense": lambda encoder: setattr(encoder, "tail", _tail()),
    "norm": _set(tail=nn.Sequential(nn.LayerNorm(16))),
    "heads": _set(heads=make_heads()),
    "other codes": _set(heads=make_heads(codes=(3, 5, 3))),
    "truncation side": _truncate_left,
    "normaliser": lambda encoder: setattr(encoder.tokenizer.backend_tokenizer, "normalizer", normalizers.Lowercase()),
    "special tokens": _no_start_token,
    "added token": lambda encoder: encoder.tokenizer.add_tokens(["cat sat"]),
}


# By kind of tokenizer (WordPiece lower-cases by itself): what changes no vector.
@pytest.mark.parametrize(("name", "no_changes"), [("words", set()), ("bert", {"casing"}), ("xlm-roberta", set())])
def test_whatever_changes_the_vectors_changes_the_digest(name, no_changes, tiny_folder, tmp_path):
    folder = tiny_folder("bert") if name == "words" else make_splitting(name, tmp_path / "model")
    texts = [*TEXTS, *sentences(4, 7), "kato NAÏVE naïve CAPS"]
    start = load_encoder(folder)
    vectors, digests, same = start.vectors(texts), {encoder_digest(start)}, set()
    for change_name, change in CHANGES.items():
        encoder = load_encoder(folder)
        change(encoder)
        found = encoder.eval().vectors(texts)
        if found.shape == vectors.shape and torch.equal(found, vectors):
            same.add(change_name)
        digests.add(encoder_digest(encoder))
    assert same == no_changes
    assert len(digests) == len(CHANGES) + 1


def _tail(**options):
    settings = {"bias": True, "activation": "Tanh"} | options
    return nn.Sequential(_seeded(Dense, 16, 8, **settings), nn.LayerNorm(8), Normalize())


POOLERS = [
    *[{"over": over} for over in ("both", "cls", "mean")],
    *[{"literal": True}, {"token": "last"}, {"mlp": False}],
    *[{"layers": [1, 3]}, {"layers": [1, 3], "last": True}],
    *[{"layers": [1, 3], "norm": norm, "eps": eps} for norm in ("layer", "rms") for eps in (1e-5, 0.1)],
]


def test_settings_of_modules_count_where_the_weights_are_the_same(tiny_folder):
    encoder, loose, raw = load_encoder(tiny_folder("bert")), _tail(), make_heads()
    loose[1].eps, raw.raw = 0.1, True
    poolers = [_seeded(LayerPooling if "layers" in one else LayerAttentionPooling, 16, **one) for one in POOLERS]
    tails = [_tail(), _tail(activation="GELU"), _tail(bias=False), loose, _tail()[:2]]
    heads = [make_heads(kind="exp"), make_heads(kind="sigmoid"), raw]
    digests = set()
    for name, modules in (("tail", tails), ("pooler", poolers), ("heads", heads)):
        for module in modules:
            setattr(encoder, name, module)
            digests.add(encoder_digest(encoder))
    assert len(digests) == len(tails) + len(poolers) + len(heads)


def _with_all(encoder):
    norm = {"norm": "layer"} if encoder.final_norm is not None else {}
    encoder.tail = _tail()
    encoder.pool_with(LayerPooling(16, layers=(0, 2, 3), **norm))
    encoder.lower_case, encoder.max_length = True, 9
    encoder.settings = PROMPTS | {"similarity_fn_name": "dot"}


CASES = [*((family, "all") for family in FAMILIES), *(("bert", form) for form in CHANGES)]


@pytest.mark.parametrize(("family", "form"), CASES)
def test_use_saving_and_loading_keep_the_digest(family, form, tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder(family), pooling="last")
    (CHANGES | {"all": _with_all})[form](encoder)
    before = encoder_digest(encoder)
    encoder.train()
    encoder.vectors(TEXTS)
    assert encoder_digest(encoder) == before
    assert encoder_digest(load_encoder(save_encoder(encoder, tmp_path / "model"))) == before


def test_neither_folder_nor_name_nor_way_of_attention_count(tiny_folder, tmp_path):
    folder = tiny_folder("bert")
    before = encoder_digest(load_encoder(folder))
    moved = shutil.copytree(folder, tmp_path / "elsewhere/model")
    assert encoder_digest(load_encoder(moved)) == encoder_digest(load_encoder(folder, attention="eager")) == before
    edit_json(
        moved / "config.json", architectures=["BertForMaskedLM"], transformers_version="4.1.0", _name_or_path="owner/x"
    )
    edit_json(moved / "config.json", id2label={"0": "yes", "1": "no"}, use_cache=False, classifier_dropout=0.5)
    encoder = load_encoder(moved)
    encoder.settings = {"prompts": {"query": "", "document": ""}, "default_prompt_name": "query"}
    assert encoder_digest(encoder) == before
    edit_json(moved / "config.json", num_attention_heads=4)
    assert encoder_digest(load_encoder(moved)) != before


def test_a_tokenizer_in_python_counts_by_vocabulary_merges_and_settings(tiny_folder, tmp_path):
    encoder, digests = load_encoder(tiny_folder("bert")), []
    for words, settings in ((WORDS, {}), ([*WORDS[1::-1], *WORDS[2:]], {}), (WORDS, {"do_lower_case": True})):
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n")
        encoder.tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", word_tokenizer_type="basic", **settings)
        (tmp_path / "saved").mkdir(exist_ok=True)
        write_tokenizer(encoder.tokenizer, tmp_path / "saved")
        digests.append(encoder_digest(encoder))
        encoder.tokenizer = BertJapaneseTokenizer.from_pretrained(tmp_path / "saved")
        assert encoder_digest(encoder) == digests[-1]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in ("ab@@", "c", "a@@", "bc")))
    for number, merges in enumerate(("a b 2\nb c</w> 1\n", "b c</w> 2\na b 1\n")):
        (tmp_path / f"{number}.codes").write_text(merges)
        encoder.tokenizer = PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / f"{number}.codes"))
        digests.append(encoder_digest(encoder))
    assert len(set(digests)) == 5
