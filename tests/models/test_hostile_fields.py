"""Fields of a model folder that name files, classes or ways to run: nothing outside is read, and nothing runs."""

import json
import shutil
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.families import VOCABULARY, WORDS
from truncate_kit.errors import ModelError
from truncate_kit.models import load_encoder, save_encoder

SECRET = "topsecretword"


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A copy of a model; beside it weights that are not its own, and a tokenizer with a secret."""
    place, outside = tmp_path / "model", tmp_path / "outside"
    shutil.copytree(tiny_folder("bert"), place)
    outside.mkdir()
    weights = load_file(place / "model.safetensors")
    save_file({name: weight * 2 for name, weight in weights.items()}, outside / "model.safetensors")
    text = (place / "tokenizer.json").read_text().replace(f'"{WORDS[2]}"', f'"{SECRET}"')
    (outside / "tokenizer.json").write_text(text)
    (outside / "words.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", SECRET]))
    (outside / "t.jinja").write_text(SECRET)
    assert SECRET in text
    return place


def changed(file, **values):
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | values))


def listed(folder, *modules):
    rows = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(rows))


TRANSFORMER = ("", "sentence_transformers.models.Transformer")


@pytest.mark.parametrize("shard", ["../outside/model.safetensors", "ABSOLUTE", "sub/../../outside/model.safetensors"])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_parts_of_weights_outside_the_folder_are_refused(folder, shard, index):
    outside = folder.parent / "outside" / "model.safetensors"
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = list(weights.keys())
    (folder / "model.safetensors").unlink()
    (folder / "sub").mkdir()
    place = str(outside) if shard == "ABSOLUTE" else shard
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, place)}))
    with pytest.raises(ModelError, match="outside the model's own folder"):
        load_encoder(folder)


def test_parts_of_weights_inside_the_folder_are_read(folder):
    expected = load_encoder(folder).vectors(["a cat"])
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(weights)}
    for part in set(parts.values()):
        save_file({name: weights[name] for name in weights if parts[name] == part}, folder / part, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    assert torch.equal(load_encoder(folder).vectors(["a cat"]), expected)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 7}', "[" * 100_000])
def test_a_damaged_list_of_parts_is_said(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json cannot be read"):
        load_encoder(folder)


def test_an_adapter_beside_the_weights_is_refused_and_its_base_is_not_loaded(folder):
    changed(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder.parent / "outside"))
    with pytest.raises(ModelError, match="adapter"):
        load_encoder(folder)


def test_an_adapter_alone_is_called_that(folder):
    changed(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path="bert-base-uncased")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="holds an adapter"):
        load_encoder(folder)


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "fp8", "torchao"])
def test_quantised_weights_are_called_that_and_no_package_is_asked_for(folder, method):
    changed(folder / "config.json", quantization_config={"quant_method": method})
    with pytest.raises(ModelError, match=rf"quantised \(quantization_config: {method}\)") as refused:
        load_encoder(folder)
    assert "the checkpoint that is not quantised" in refused.value.hint


@pytest.mark.parametrize("form", ["model.gguf", "onnx/model.onnx", "tf_model.h5"])
def test_weights_of_other_forms_are_not_called_cut_short(folder, form):
    (folder / form).parent.mkdir(exist_ok=True)
    (folder / "model.safetensors").rename(folder / form)
    with pytest.raises(ModelError, match="no weights of a form that is read") as refused:
        load_encoder(folder)
    assert "model.safetensors or pytorch_model.bin" in refused.value.hint


def test_weights_of_another_name_outside_the_folder_are_refused(folder):
    changed(folder / "config.json", transformers_weights="../outside/model.safetensors")
    with pytest.raises(ModelError, match="inside the model directory"):
        load_encoder(folder)


@pytest.mark.parametrize("key", ["tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file", "spm_file"])
@pytest.mark.parametrize("name", ["tokenizer.json", "words.txt"])
def test_files_that_a_tokenizer_names_are_not_read_and_not_written_again(folder, key, name):
    """Old tokenizers on the hub name such files by accident: they are loaded from the folder, as transformers does."""
    changed(folder / "tokenizer_config.json", **{key: str(folder.parent / "outside" / name)})
    save_encoder(load_encoder(folder), folder.parent / "saved")
    assert not any(SECRET in file.read_text(errors="replace") for file in (folder.parent / "saved").rglob("*.*"))


@pytest.mark.parametrize("link", ["additional_chat_templates", "additional_chat_templates/t.jinja"])
def test_templates_that_are_links_are_refused(folder, link):
    outside, place = folder.parent / "outside", folder / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside / "t.jinja" if place.suffix else outside)
    with pytest.raises(ModelError, match="is a link to"):
        load_encoder(folder)


def test_a_template_that_never_ends_or_looks_into_python_is_not_run(folder):
    changed(folder / "tokenizer_config.json", chat_template="{% for i in range(10**12) %}x{% endfor %}")
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    load_encoder(folder).vectors(["a cat"])


@pytest.mark.parametrize(
    "kind", ["evil.Transformer", "evil.Pooling", "os.path.Dense", "layer_pooling.Pooling", ".Dense"]
)
def test_module_classes_that_sentence_transformers_would_import_are_refused(folder, kind):
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    listed(folder, TRANSFORMER, ("", kind)) if "Transformer" not in kind else listed(folder, ("", kind))
    with pytest.raises(ModelError, match="not run"):
        load_encoder(folder)
    assert not (folder / "ran").exists()


def test_a_module_folder_of_a_name_that_no_file_has(folder):
    listed(folder, TRANSFORMER, ("x" * 300, "sentence_transformers.models.Pooling"))
    with pytest.raises(ModelError, match="outside"):
        load_encoder(folder)


PLACES = {
    "config.json": {"_name_or_path": "owner/model", "auto_map": {"AutoModel": "owner/model--code.X"}},
    "tokenizer_config.json": {"name_or_path": "owner/model", "vocab_file": "https://somewhere.invalid/vocab.txt"},
    "generation_config.json": {"custom_generate": "owner/model"},
    "processor_config.json": {"auto_map": {"AutoProcessor": "owner/model--code.X"}},
    "sentence_bert_config.json": {"model_name_or_path": "owner/model"},
}


def test_nothing_that_a_folder_names_is_asked_for_on_the_network(folder, monkeypatch):
    listed(folder, TRANSFORMER)
    for name, values in PLACES.items():
        changed(folder / name, **values)
    asked = []

    def nowhere(*place, **_):
        asked.append(place[0])
        raise socket.gaierror

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    load_encoder(folder).vectors(["a cat"])
    assert asked == []
    with pytest.raises(ModelError, match="cannot be reached"):  # as a name that the user gives is
        load_encoder("owner/model")
    assert asked


@pytest.mark.parametrize(
    ("key", "value"),
    [("chunk_size_feed_forward", 10**9), ("return_dict", False), ("output_attentions", True), ("torchscript", True)],
)
def test_ways_to_hand_over_results_change_none(folder, key, value):
    expected = load_encoder(folder).vectors(["a cat"])
    changed(folder / "config.json", **{key: value})
    assert torch.equal(load_encoder(folder).vectors(["a cat"]), expected)


def test_the_maximum_length_is_that_of_sentence_transformers(folder):
    listed(folder, TRANSFORMER)
    changed(folder / "sentence_bert_config.json", max_seq_length=9)
    changed(folder / "tokenizer_config.json", model_max_length=4)
    assert load_encoder(folder).max_length == 9
    changed(folder / "sentence_bert_config.json", max_seq_length=None)
    assert load_encoder(folder).max_length == 4


@pytest.mark.parametrize("value", ["512", [], {}, True, float("nan")])
@pytest.mark.parametrize("where", ["tokenizer_config.json", "sentence_bert_config.json"])
def test_a_maximum_length_that_is_no_number(folder, where, value):
    listed(folder, TRANSFORMER)
    changed(folder / where, **{"model_max_length" if "tokenizer" in where else "max_seq_length": value})
    with pytest.raises(ModelError, match="length"):
        load_encoder(folder)


def test_a_tokenizer_of_another_kind_of_model(folder):
    for part in ("question_encoder_tokenizer", "generator_tokenizer"):
        shutil.copytree(folder, folder.parent / part)
        shutil.move(folder.parent / part, folder / part)
    changed(folder / "tokenizer_config.json", tokenizer_class="RagTokenizer")
    with pytest.raises(ModelError, match="tokenizer"):
        load_encoder(folder)


def test_the_saved_tokenizer_does_not_depend_on_what_was_read_before(folder):
    read, unread = load_encoder(folder), load_encoder(folder)
    read.vectors(["a cat sat on the mat"])
    read.tokenizer(["a"], padding="max_length", max_length=9)
    files = [save_encoder(one, folder.parent / name) / "tokenizer.json" for one, name in ((read, "a"), (unread, "b"))]
    assert Path(files[0]).read_bytes() == Path(files[1]).read_bytes()
    assert len(read.tokenizer) <= VOCABULARY
