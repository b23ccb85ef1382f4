"""Checkpoints in the forms that lie on the hub, and folders that cannot be used or must not be trusted."""

import copy
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from tests.support.families import TEXTS, TINY_CONFIGS, VOCABULARY, tiny_tokenizer
from tests.support.files import edit_json as edit
from tests.support.shared import shared_part
from tests.support.word_pieces import make_splitting
from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.methods.priors import load_masked_head
from truncate_kit.models.loading import load_config, load_encoder, load_reader
from truncate_kit.models.pipeline import save_encoder

WEIGHTS = "model.safetensors"
DENSE = {"in_features": 16, "out_features": 16, "bias": False, "activation_function": "torch.nn.Identity"}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A sentence-transformers folder that ends in a Dense module, an identity."""
    place = save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "model")
    (place / "2_Dense").mkdir()
    edit(place / "2_Dense/config.json", **DENSE)
    save_file({"linear.weight": torch.eye(16)}, place / "2_Dense" / WEIGHTS)
    row = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    modules = json.loads((place / "modules.json").read_text())
    (place / "modules.json").write_text(json.dumps([*modules, row]))
    return place


def refill(folder, change):
    """Write the weights of a folder anew as `change` gives them."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def loads_as(folder, reference):
    return np.abs(load_encoder(folder).encode(TEXTS) - load_encoder(reference).encode(TEXTS)).max()


# Forms of checkpoints


def old_names(weights):
    """Name the parts of norms as checkpoints of the first BERT do."""
    names = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in weights}
    return {f"bert.{names[name]}": value for name, value in weights.items()}


def with_weight(name):
    return lambda weights: weights | {name: torch.ones(3)}


FORMS = {
    "cross-attention": with_weight("encoder.layer.0.crossattention.self.query.weight"),
    "a mask": with_weight("encoder.layer.0.attn.bias"),
    "a buffer of positions": lambda weights: weights | {"embeddings.position_ids": torch.arange(36)[None]},
    "the model's prefix": lambda weights: {f"bert.{name}": value for name, value in weights.items()},
    "old names of norms": old_names,
    "double precision": lambda weights: {name: value.double() for name, value in weights.items()},
    "no pooler": lambda weights: {name: value for name, value in weights.items() if not name.startswith("pooler")},
}


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, True),  # e5-mistral-7b-instruct
        ({"tokenizer_class": "Qwen2Tokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"tokenizer_class": "LlamaTokenizer", "add_eos_token": False}, False),
    ],
)
def test_an_end_token_that_only_the_settings_name_is_added(tmp_path, settings, ends):
    """transformers 4 added it, and such models pool it. With explicit options, transformers 5 gives the same ids."""
    folder = make_splitting("qwen2" if "auto_map" in settings else "llama", tmp_path / "model")
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [start, {"Sequence": {"id": "A", "type_id": 0}}], "pair": []}
    template["special_tokens"] = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
    edit(folder / "tokenizer.json", post_processor=template)
    edit(folder / "tokenizer_config.json", **({"add_eos_token": True} | settings))
    peer = AutoTokenizer.from_pretrained(folder, add_bos_token=True, add_eos_token=ends)
    expected = peer(TEXTS, truncation=True, max_length=36)["input_ids"]
    encoder = load_encoder(folder, pooling="last")
    assert encoder.token_ids(TEXTS) == expected
    assert all((ids[-1] == 2) is ends for ids in encoder.token_ids(TEXTS))
    saved = save_encoder(encoder, tmp_path / "saved")
    loaded = SentenceTransformer(str(saved), device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), loaded.encode(TEXTS), atol=1e-5, rtol=1e-4)
    assert load_encoder(saved).token_ids(TEXTS) == encoder.token_ids(TEXTS)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_under_other_names_are_the_same_model(tiny_folder, tmp_path, form, pickled):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    refill(folder, FORMS[form])
    if pickled:
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
    assert loads_as(folder, tiny_folder("bert")) < 1e-6


def test_half_precision_and_shards(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    weights = {name: value.to(torch.float16) for name, value in load_file(folder / WEIGHTS).items()}
    (folder / WEIGHTS).unlink()
    parts = {f"model-0000{part + 1}-of-00002.safetensors": list(weights)[part::2] for part in range(2)}
    for name, names in parts.items():
        save_file({key: weights[key] for key in names}, folder / name, metadata={"format": "pt"})
    places = {key: name for name, names in parts.items() for key in names}
    edit(folder / f"{WEIGHTS}.index.json", metadata={"total_size": 1}, weight_map=places)
    encoder = load_encoder(folder)
    assert {value.dtype for value in encoder.backbone.parameters()} == {torch.float32}
    found = encoder.backbone.get_input_embeddings().weight
    assert torch.equal(found, weights["embeddings.word_embeddings.weight"].float())


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "mpnet", "albert", "deberta", "deberta-v2", "modernbert"]
)
def test_a_model_with_its_pretraining_head(name, tmp_path):
    torch.manual_seed(0)
    whole = AutoModelForMaskedLM.from_config(TINY_CONFIGS[name]).eval()
    whole.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path, pooling="mean")
    batch = encoder.tokenize(TEXTS)
    with torch.no_grad():
        states = whole.base_model(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1)
    wanted = (states * weights).sum(1) / weights.sum(1)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "qwen2"])
def test_weights_behind_the_last_block_are_refused(tiny_folder, tmp_path, family, prefixed):
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    if prefixed:
        prefix = AutoModel.from_pretrained(folder).base_model_prefix
        refill(folder, lambda weights: {f"{prefix}.{name}": value for name, value in weights.items()})
        assert loads_as(folder, tiny_folder(family)) < 1e-6
    config = json.loads((folder / "config.json").read_text())
    depth = next(name for name in ("n_layers", "n_layer", "num_hidden_layers") if name in config)
    types = {"layer_types": config["layer_types"][:-1]} if "layer_types" in config else {}
    edit(folder / "config.json", **{depth: config[depth] - 1}, **types)
    with pytest.raises(ModelError, match="in extra blocks"):
        load_encoder(folder)


@pytest.mark.parametrize(("family", "kind"), [("modernbert", "absolute"), ("gte", "rope")])
def test_positions_that_a_class_computes_may_be_named(tiny_folder, tmp_path, family, kind):
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    edit(folder / "config.json", position_embedding_type=kind)
    assert loads_as(folder, tiny_folder(family)) == 0


# Folders that cannot be used


def words_of_another_model(folder):
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["vocab"]["cat"] = 10**9
    (folder / "tokenizer.json").write_text(json.dumps(values))


LAST = "encoder.layer.1.output.dense.weight"
UNKNOWN = '[{"idx": 0, "path": "", "type": "a.b.WordWeights"}]'


def missing(weights):
    return {name: value for name, value in weights.items() if name != LAST}


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def edited(name, **values):
    return lambda folder: edit(folder / name, **values)


PROBLEMS = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "has no weights"),
    "half of the weights": (lambda folder: halve(folder / WEIGHTS), "cannot be read"),
    "no number": (lambda folder: refill(folder, lambda held: held | {LAST: held[LAST] * torch.nan}), "NaN"),
    "an unknown module": (lambda folder: (folder / "modules.json").write_text(UNKNOWN), r"a\.b\.WordWeights"),
    "a missing weight": (lambda folder: refill(folder, missing), r"are missing, such as encoder\.layer\.1"),
    "a weight of a block more": (
        lambda folder: refill(folder, with_weight("encoder.layer.0.adapter.weight")), r"layer\.0\.adapter\.weight",
    ),
    "relative positions": (edited("config.json", position_embedding_type="relative_key"), "position_embedding_type"),
    "another shape": (edited("config.json", type_vocab_size=1), "another shape"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config"),
    "a damaged config": (lambda folder: (folder / "config.json").write_text("{"), "Cannot read"),
    "no family": (edited("config.json", model_type=None), "has no model_type"),
    "another rotation": (edited("config.json", rope_parameters={"rope_type": "ntk"}), "rope_type 'ntk'"),
    "an unknown family": (edited("config.json", model_type="t5"), "'t5' is not supported"),
    "a part": (edited("config.json", model_type="x", text={"model_type": "bert"}), "text is a"),
    "quantised": (edited("config.json", quantization_config={"bits": 4}), "quantization_config"),
    "an adapter": (edited("adapter_config.json", r=8), "holds an adapter"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "another tokenizer": (words_of_another_model, "1,000,000,001 entries"),
    "an unknown activation": (edited("2_Dense/config.json", activation_function="os.system"), "activation 'system'"),
    "an empty module": (lambda folder: (folder / "2_Dense/config.json").write_text("{}"), "KeyError, 'in_features'"),
    "tokens before pooling": (edited("2_Dense/config.json", module_input_name="token_embeddings"), "module_input_name"),
    "cut vectors": (edited("config_sentence_transformers.json", truncate_dim=4), "truncate_dim"),
    "a sparse model": (edited("config_sentence_transformers.json", model_type="SparseEncoder"), "model_type"),
    "overrides": (edited("sentence_bert_config.json", config_args={"a": 1}), "config_args"),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_folder_that_cannot_be_used(folder, problem):
    change, message = PROBLEMS[problem]
    change(folder)
    with pytest.raises(ModelError, match=message) as refused:
        load_encoder(folder)
    assert refused.value.hint


def test_settings_that_do_not_suit_the_model(tiny_folder):
    wrong = [({"max_length": length}, f"maximum length of {length}") for length in (41, 1, 0)]
    for options, message in (*wrong, ({"pooling": "a"}, "no pooling 'a'"), ({"attention": "b"}, "no attention 'b'")):
        with pytest.raises(UsageError, match=message):
            load_encoder(tiny_folder("bert"), **options)


# Folders that must not be trusted


@pytest.mark.parametrize("read", [load_encoder, load_config, load_reader])
@pytest.mark.parametrize("path", ["../secret", "ABSOLUTE", "link"])
def test_a_module_path_out_of_the_folder_is_refused(folder, read, path):
    secret = folder.parent / "secret"
    secret.mkdir()
    (folder / "link").symlink_to(secret)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = str(secret) if path == "ABSOLUTE" else path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="outside the model's own folder"):
        read(folder)


@pytest.mark.parametrize("name", ["config.json", "2_Dense/config.json"])
def test_a_file_that_links_out_of_the_folder_is_refused(folder, name):
    secret = folder.parent / "secret"
    (folder / name).rename(secret)
    (folder / name).symlink_to(secret)
    with pytest.raises(ModelError, match=f"{Path(name).name} leads to .*outside"):
        load_encoder(folder)


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_links_of_the_hubs_cache_are_followed_within_its_repository(tiny_folder, tmp_path, place):
    snapshot, blobs = tmp_path / "models--o--n/snapshots/0123", tmp_path / "models--o--n/blobs"
    (snapshot / place).mkdir(parents=True)
    blobs.mkdir()
    for file in tiny_folder("bert").iterdir():
        shutil.copy(file, blobs)
        (snapshot / place / file.name).symlink_to(blobs / file.name)
    row = {"idx": 0, "name": "0", "path": place, "type": "sentence_transformers.models.Transformer"}
    (snapshot / "modules.json").write_text(json.dumps([row]))
    assert loads_as(snapshot, tiny_folder("bert")) == 0


@pytest.mark.parametrize("cache", ["hub/models--o--n", "elsewhere"])
def test_weights_linked_into_a_cache(tiny_folder, tmp_path, cache):
    """`hf download --local-dir` made such links. A folder `blobs` belongs to a cache if `snapshots` is beside it."""
    blobs, folder = tmp_path / cache / "blobs", shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    blobs.mkdir(parents=True)
    (folder / WEIGHTS).rename(blobs / "0123")
    (folder / WEIGHTS).symlink_to(blobs / "0123")
    if cache == "elsewhere":
        with pytest.raises(ModelError, match="outside the model's own folder"):
            load_encoder(folder)
        (blobs.parent / "snapshots").mkdir()
    assert loads_as(folder, tiny_folder("bert")) == 0


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", f"2_Dense/{WEIGHTS}"])
def test_a_pointer_of_git_lfs_is_named(folder, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 90868376\n"
    (folder / "pytorch_model.bin").write_text(pointer)
    load_config(folder)  # pickled weights are not needed
    (folder / name).write_text(pointer)
    with pytest.raises(ModelError, match=rf"{name} is a Git LFS pointer") as refused:
        load_encoder(folder)
    assert "git lfs pull" in refused.value.hint


def test_an_added_token_without_an_embedding_is_fine_until_a_text_has_it(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("gpt2"), tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.add_tokens([f"<{number}>" for number in range(VOCABULARY)])
    tokenizer.save_pretrained(folder)
    encoder = load_encoder(folder)
    assert np.abs(encoder.encode(TEXTS) - load_encoder(tiny_folder("gpt2")).encode(TEXTS)).max() == 0
    with pytest.raises(ModelError, match="the token <20>, id 42"):
        encoder.encode(["a red <20> dog"])
    edit(folder / "tokenizer_config.json", pad_token="<30>")  # nothing is padded with it
    assert np.abs(load_encoder(folder).encode(TEXTS) - encoder.encode(TEXTS)).max() == 0


@pytest.mark.parametrize("kind", [torch.int8, torch.complex64])
@pytest.mark.parametrize("place", ["", "2_Dense", "pytorch_model.bin"])
def test_weights_that_are_no_real_numbers_are_refused(folder, place, kind):
    file = folder / place / WEIGHTS if place != "pytorch_model.bin" else folder / WEIGHTS
    weights = load_file(file)
    name = "linear.weight" if place == "2_Dense" else "encoder.layer.1.output.LayerNorm.weight"
    weights[name] = weights[name].to(kind)
    save_file(weights, file, metadata={"format": "pt"})
    if place == "pytorch_model.bin":
        torch.save(weights, folder / place)
        file.unlink()
    with pytest.raises(ModelError, match=r"LayerNorm.weight|linear.weight|Only Tensors of floating point"):
        load_encoder(folder)


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.mkdir, (self.place,)


@pytest.mark.parametrize("place", ["", "2_Dense"])
def test_pickled_code_is_not_run(folder, tmp_path, place):
    (folder / place / WEIGHTS).unlink()
    content = [Planted(tmp_path / "ran"), torch.zeros(20_000)]
    (folder / place / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(ModelError):
        load_encoder(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_code_of_a_folder_is_not_run(family, tiny_folder, tmp_path, caplog):
    folder, marker = shutil.copytree(tiny_folder(family), tmp_path / "model"), tmp_path / "marker"
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass Evil: pass\n")
    edit(folder / "config.json", auto_map={"AutoModel": "evil.Evil"}, attn_implementation="owner/kernel")
    assert loads_as(folder, tiny_folder(family)) == 0
    assert sum("is not run" in record.getMessage() for record in caplog.records) == 1
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")
    assert loads_as(folder, tiny_folder(family)) == 0  # by tokenizer.json
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"module evil\.Transformer"):
        load_encoder(folder)
    assert not marker.exists()


def test_vectors_that_are_not_cut(prompting):
    assert load_encoder(prompting(truncate_dim=False)).vector_width == load_encoder(prompting()).vector_width


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_a_way_of_attention_that_needs_a_compiler_is_not_used(tiny_folder, tmp_path, caplog, field):
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(TINY_CONFIGS["bert"]).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", **{field: "flex_attention"})
    encoder = load_encoder(tmp_path)
    head = load_masked_head(encoder)
    assert head.pretrained
    for model in (encoder.backbone, head.model):
        assert {part.config._attn_implementation for part in model.modules() if hasattr(part, "config")} == {"sdpa"}
    assert f"{field} 'flex_attention'" in caplog.text


# Configurations of code in a model's repository

HUB_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon",
}  # fmt: skip
HUB_ONLY = {
    "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False,
    "rotary_emb_scale_base": None, "use_rms_norm": False, "causal": False, "fused_bias_fc": True, "use_xentropy": True,
    "summary_type": "cls_index", "mask_token_id": 4, "tie_word_embeddings": True,
    "auto_map": {"AutoModel": "owner/name--modeling.Model"},
}  # fmt: skip


@pytest.fixture
def hub_style(tmp_path):
    """Save a Nomic BERT with an unusual rotary base and epsilon, and with the field names of its hub code."""
    torch.manual_seed(0)
    config = copy.deepcopy(TINY_CONFIGS["nomic-bert"])
    config.rope_parameters, config.layer_norm_eps = {"rope_type": "default", "rope_theta": 10_000.0}, 0.1
    AutoModel.from_config(config).save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    folder = Path(shutil.copytree(tmp_path / "plain", tmp_path / "hub"))
    values = {HUB_NAMES.get(name, name): value for name, value in config.to_dict().items()}
    values = {name: value for name, value in values.items() if name not in ("rope_parameters", "hidden_act")}
    (folder / "config.json").unlink()
    edit(folder / "config.json", **values | HUB_ONLY | {"rotary_emb_base": 10_000})
    return folder


def test_fields_under_the_names_of_other_code(hub_style, tmp_path):
    assert loads_as(hub_style, hub_style.parent / "plain") == 0
    values = json.loads(save_encoder(load_encoder(hub_style), tmp_path / "saved").joinpath("config.json").read_text())
    assert not {*HUB_NAMES.values(), *HUB_ONLY} & values.keys()
    edit(hub_style / "config.json", rotary_scaling_factor=2, max_trained_positions=20)
    assert load_encoder(hub_style).max_length == 20  # longer texts depend on others in the batch
    edit(tmp_path / "llama.json", model_type="llama", d_model=64, num_hidden_layers=2, n_kv_heads=4, norm_eps=0.1)
    llama = load_config(tmp_path / "llama.json")
    assert (llama.hidden_size, llama.num_key_value_heads, llama.rms_norm_eps) == (64, 4, 0.1)
    case = load_config(shared_part("cases") / "nomic-hub-config/config.json")
    assert (case.num_hidden_layers, case.max_position_embeddings, case.vocab_size) == (6, 2048, 8192)
    assert (case.rope_parameters["rope_theta"], case.hidden_act, case.layer_norm_eps) == (10_000, "silu", 1e-12)


@pytest.mark.parametrize(
    "field",
    [
        {"rotary_emb_interleaved": True}, {"rotary_emb_fraction": 0.5}, {"prenorm": True}, {"use_rms_norm": True},
        {"num_experts": 8}, {"causal": True}, {"rotary_emb_scale_base": 512}, {"logn_attention_scale": True},
    ],
    ids=str,
)  # fmt: skip
def test_fields_without_a_meaning_here_are_refused(hub_style, field):
    edit(hub_style / "config.json", **field)
    with pytest.raises(ModelError, match=next(iter(field))):
        load_encoder(hub_style)
