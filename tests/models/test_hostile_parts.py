"""Modules, tokenizers and weights of a model folder that ask for memory, end Python, or would be read as others."""

import json
import os
import pickle
import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from truncate_kit.errors import ModelError
from truncate_kit.models import load_encoder, save_encoder

DENSE = {
    "in_features": 16,
    "out_features": 16,
    "bias": False,
    "activation_function": "torch.nn.modules.linear.Identity",
}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A sentence-transformers folder."""
    return save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "model")


def changed(file, change):
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


SETTINGS = [
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_key_that_is_there_twice_is_refused_wherever_it_stands(folder, name):
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("{", '{"hidden_size": 7, "hidden_size": 8, ', 1))
    with pytest.raises(ModelError, match=r"the key 'hidden_size' is there twice"):
        load_encoder(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
def test_more_added_tokens_than_are_read_in_seconds_are_refused_at_once(folder, name):
    places, token = range(100, 30_200), {"single_word": False, "special": True}
    added = {
        "tokenizer.json": {"added_tokens": [token | {"id": place, "content": f"t{place}"} for place in places]},
        "tokenizer_config.json": {"extra_special_tokens": [f"t{place}" for place in places]},
        "added_tokens.json": {f"t{place}": place for place in places},
    }[name]
    known = json.loads((folder / name).read_text()) if name != "added_tokens.json" else {}
    (folder / name).write_text(json.dumps(known | added))
    with pytest.raises(ModelError, match=r"adds 30,10\d tokens|adds 30,100 tokens"):
        load_encoder(folder)


def add_dense(folder, **values):
    place = folder / "2_Dense"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(DENSE | values))
    save_file({"linear.weight": torch.eye(16)}, place / "model.safetensors")
    row = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    changed(folder / "modules.json", lambda rows: rows.append(row))


def test_a_module_between_is_read(folder):
    expected = load_encoder(folder).vectors(["a cat"])
    add_dense(folder)
    torch.testing.assert_close(load_encoder(folder).vectors(["a cat"]), expected)


@pytest.mark.parametrize("size", [10**8, 10**12, 10**30, -1, 1e999, None])
def test_sizes_of_a_module_are_held_against_its_weights_before_memory_is_taken(folder, size):
    add_dense(folder, in_features=size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"2_Dense|config\.json"):
        load_encoder(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


ELSEWHERE = [
    ("2_Dense/config.json", "module_input_name", "token_embeddings"),
    ("2_Dense/config.json", "module_output_name", "other"),
    ("2_Dense/config.json", "use_residual", True),
    ("config_sentence_transformers.json", "truncate_dim", 4),
    ("config_sentence_transformers.json", "model_type", "SparseEncoder"),
    ("sentence_bert_config.json", "config_args", {"num_hidden_layers": 2}),
    ("sentence_bert_config.json", "tokenizer_args", {"model_max_length": 4}),
    ("sentence_bert_config.json", "processing_kwargs", {"text": {"max_length": 4}}),
]


@pytest.mark.parametrize(("key", "value", "cuts"), [("truncate_dim", 4, True), ("model_type", "CrossEncoder", False)])
def test_only_a_model_that_cuts_its_vectors_is_led_to_dimensions(folder, key, value, cuts):
    (folder / "config_sentence_transformers.json").write_text(json.dumps({key: value}))
    with pytest.raises(ModelError, match=key) as refused:
        load_encoder(folder)
    assert ("`dimensions`" in refused.value.hint) is cuts


@pytest.mark.parametrize(("name", "key", "value"), ELSEWHERE, ids=[key for _, key, _ in ELSEWHERE])
def test_settings_by_which_sentence_transformers_gives_other_vectors_are_refused(folder, name, key, value):
    add_dense(folder)
    changed(folder / name, lambda values: values.update({key: value}))
    with pytest.raises(ModelError, match=key):
        load_encoder(folder)


def test_a_module_for_vectors_of_another_width_is_refused_when_it_is_read(folder):
    add_dense(folder, in_features=8)
    save_file({"linear.weight": torch.ones(16, 8)}, folder / "2_Dense/model.safetensors")
    with pytest.raises(ModelError, match="takes vectors of 8 numbers, but is given those of 16"):
        load_encoder(folder)


@pytest.mark.parametrize("key", ["save_pretrained", "to_dict", "from_dict"])
def test_a_setting_that_takes_the_place_of_what_a_configuration_does(folder, key):
    changed(folder / "config.json", lambda values: values.update({key: 5}))
    with pytest.raises(ModelError, match=f"the key '{key}'"):
        load_encoder(folder)


def test_a_tokenizer_that_writes_a_text_twice_is_refused_where_that_is_too_long(folder):
    changed(folder / "tokenizer.json", twice)
    with pytest.raises(ModelError, match=r"makes 72 tokens of a text that it was to cut at \d+"):
        load_encoder(folder).vectors(["a cat", "the " * 40])


class Planted:
    """Runs a command where it is unpickled."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return os.mkdir, (self.file,)


@pytest.mark.parametrize("of_module", [True, False])
@pytest.mark.parametrize("raw", [True, False])
def test_pickled_code_is_not_run_and_named(folder, tmp_path, of_module, raw):
    add_dense(folder)
    place, content = folder / "2_Dense" if of_module else folder, [Planted(tmp_path / "ran"), torch.zeros(20_000)]
    (place / "model.safetensors").unlink()
    if raw:
        (place / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    else:
        torch.save(content, place / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could run code"):
        load_encoder(folder)
    assert not (tmp_path / "ran").exists()


def listed_last(rows):
    rows.reverse()


def numbered_otherwise(rows):
    rows[0]["idx"], rows[1]["idx"] = 1, 0


def pooled_again(rows):
    rows += [rows[1] | {"idx": 3, "type": "sentence_transformers.models.Normalize"}, rows[1] | {"idx": 4}]


@pytest.mark.parametrize("change", [listed_last, numbered_otherwise, pooled_again, list.clear])
def test_modules_in_an_order_that_others_read_otherwise_are_refused(folder, change):
    changed(folder / "modules.json", change)
    with pytest.raises(ModelError, match="order"):
        load_encoder(folder)


def test_a_hundred_thousand_modules_are_refused(folder):
    row = {"idx": 9, "name": "n", "path": "n", "type": "sentence_transformers.models.Normalize"}
    changed(folder / "modules.json", lambda rows: rows.extend([row] * 100_000))
    with pytest.raises(ModelError, match="100,002 modules"):
        load_encoder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "modules.json", "model.safetensors", "1_Pooling"])
def test_links_in_a_circle_are_an_error(folder, name):
    shutil.rmtree(folder / name) if name == "1_Pooling" else (folder / name).unlink()
    (folder / name).symlink_to(name)
    if name == "modules.json":  # as if it were not there
        load_encoder(folder)
        return
    with pytest.raises(ModelError):
        load_encoder(folder)


def test_weights_of_whole_numbers_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("bias"))
    save_file(weights | {name: weights[name].view(torch.int32)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="of the type I32"):
        load_encoder(folder)


def test_more_weights_than_are_compared_in_seconds_are_refused_at_once(folder):
    names = {f"w{place}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for place in range(60_000)}
    header = json.dumps(names).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="names 60,000 weights"):
        load_encoder(folder)


def test_weights_of_another_shape_are_named(folder):
    changed(folder / "config.json", lambda values: values.update(type_vocab_size=1))
    with pytest.raises(ModelError, match=r"another shape than .* for embeddings\.token_type_embeddings"):
        load_encoder(folder)


def growing(content):
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"normalizer": {"type": "Sequence", "normalizers": [step, step]}}


def special(ids):
    pieces = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokens = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"] * len(ids)}}
    return {
        "post_processor": {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": tokens}
    }


def twice(values):
    values["post_processor"]["single"] = [{"Sequence": {"id": "A", "type_id": 0}}] * 2


def shared(values):
    values["model"]["vocab"]["dog"] = values["model"]["vocab"]["cat"]


def drawn(values):
    model = {"type": "BPE", "dropout": 0.5, "unk_token": "[UNK]", "merges": []}
    values["model"] = model | {"vocab": values["model"]["vocab"]}


def unknown(values):
    values["model"]["unk_token"] = "[NOPE]"


def far(values):
    values["model"]["vocab"]["cat"] = 10**9


TOKENIZERS = {
    "a word far beyond the embeddings": (far, "1,000,000,001 entries"),
    "special tokens beyond the embeddings": (lambda values: values.update(special([99_999])), "the id 99,999"),
    "more special tokens than positions": (lambda values: values.update(special([2] * 60)), "tokens"),
    "no token for unknown words": (unknown, "cannot read texts"),
    "words taken apart at random": (drawn, r"at random \(dropout 0\.5\)"),
    "one id for two words": (shared, "one id to two of its"),
    "a text becomes a million letters": (
        lambda values: values.update(normalizer={"type": "Prepend", "prepend": "a" * 10**6}),
        "1000000 letters for one",
    ),
    "a letter becomes a million": (lambda values: values.update(growing("a" * 1000)), "1000000 letters for one"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizers_that_do_not_fit_the_model_are_refused(folder, case):
    change, message = TOKENIZERS[case]
    changed(folder / "tokenizer.json", change)
    with pytest.raises(ModelError, match=message):
        load_encoder(folder)


def test_a_pattern_without_end_is_an_error_of_the_model(folder, capfd):
    step = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    changed(folder / "tokenizer.json", lambda values: values.update(normalizer=step))
    encoder = load_encoder(folder)
    with pytest.raises(ModelError, match="cannot read texts"):  # the tokenizer's library panics
        encoder.vectors(["a" * 60 + "!"])
    capfd.readouterr()
