"""Any folder that loads gives the same vectors as in sentence-transformers, for every field of its files."""

import inspect
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, models
from transformers import PreTrainedModel

from tests.support.files import edit_json
from tests.support.word_pieces import make_splitting
from truncate_kit.core.errors import ModelError, TruncateKitError
from truncate_kit.models.loading import load_encoder

TEXTS = ["the Cat sat on the mat", "a red dog", "the BIG cat and not the small dog ran under the tree"]
VALUES = [None, True, False, 0, 3, "other", "query", {}, {"text": {"max_length": 4}}, ["a"]]
MODEL_ARGS = ["key_mapping", "variant", "use_safetensors", "subfolder", "attn_implementation", "add_pooling_layer",
              "dtype", "torch_dtype", "output_loading_info", "ignore_mismatched_sizes"]  # fmt: skip


def fields_of(call) -> list[str]:
    return [name for name, one in inspect.signature(call).parameters.items() if one.kind != one.VAR_KEYWORD]


FIELDS = {
    "sentence_bert_config.json": [*fields_of(inspect.unwrap(models.Transformer.__init__)), "model_args",
                                  "tokenizer_args", "config_args", "later_field"],
    "config_sentence_transformers.json": [*fields_of(SentenceTransformer.__init__), "later_field"],
    "1_Pooling/config.json": fields_of(models.Pooling.__init__),
    "2_Dense/config.json": fields_of(models.Dense.__init__),
    "3_Normalize/config.json": fields_of(models.Normalize.__init__),
}  # fmt: skip
# Not stored in a model's folder: paths, access tokens, device.
PLACES = {"self", "model_name_or_path", "modules", "device", "cache_folder", "cache_dir", "token", "revision",
          "local_files_only", "trust_remote_code", "tokenizer_name_or_path", "model_card_data", "backend"}  # fmt: skip
LENGTHS = {"max_seq_length", "truncate_dim"}
# Fields with values of their own.
SPECIAL = [
    ("sentence_bert_config.json", {"model_args": {name: value}})
    for name, value in [
        ("key_mapping", {"layer.0.": "layer.9.", "layer.1.": "layer.0.", "layer.9.": "layer.1."}), ("variant", "other"),
        *itertools.product(MODEL_ARGS, [True, False, None]), ("dtype", "float64"), ("attn_implementation", "eager"),
    ]
] + [
    ("config_sentence_transformers.json", {"prompts": {"query": "a dog and "}, "default_prompt_name": name})
    for name in ("query", "missing", None)
]  # fmt: skip


@pytest.fixture(scope="module")
def pipeline(tiny_folder, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    transformer = models.Transformer(str(tiny_folder("bert")), max_seq_length=12, do_lower_case=True)
    chain = [models.Pooling(16), models.Dense(16, 16), models.Normalize()]
    folder = tmp_path_factory.mktemp("pipeline") / "model"
    SentenceTransformer(modules=[transformer, *chain], prompts={"query": "a dog and "}, device="cpu").save(str(folder))
    other = {name: value * 2 for name, value in PreTrainedModel.state_dict(transformer.auto_model).items()}
    torch.save(other, folder / "pytorch_model.bin")
    transformer.auto_model.save_pretrained(folder, variant="other", state_dict=other)
    return folder


def differs(folder: Path) -> bool:
    """Return whether both libraries load the folder but give different vectors."""
    try:
        ours = load_encoder(folder)
    except TruncateKitError:
        return False
    try:
        theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    except Exception:
        return False
    found = ours.encode(TEXTS)
    return found.shape != theirs.shape or not np.allclose(found, theirs, atol=1e-5)


def test_the_folder_itself_is_read_and_equal(pipeline, tmp_path):
    trusting = Path(shutil.copytree(pipeline, tmp_path / "model"))
    edit_json(trusting / "sentence_bert_config.json", config_args={"trust_remote_code": True})
    for folder in (pipeline, trusting):
        assert load_encoder(folder).encode(TEXTS).shape == (3, 16)
        assert not differs(folder)


@pytest.mark.parametrize("file", FIELDS)
def test_every_field_of_a_file(pipeline, file, tmp_path):
    cases = [{name: value} for name in FIELDS[file] if name not in PLACES for value in VALUES]
    # Not tested: false as a length, which sentence-transformers reads as 0.
    cases = [values for values in cases if values.keys().isdisjoint(LENGTHS) or 0 not in values.values()]
    cases += [values for other, values in SPECIAL if other == file]
    folder = shutil.copytree(pipeline, tmp_path / "model")
    (folder / file).parent.mkdir(exist_ok=True)
    known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    wrong = []
    for values in cases:
        (folder / file).write_text(json.dumps(known | values))
        wrong += [values] if differs(folder) else []
    assert wrong == []


def test_token_types_of_a_template(tmp_path):
    folder = make_splitting("bert", tmp_path)
    values = json.loads((folder / "tokenizer.json").read_text())
    for part in values["post_processor"]["single"]:
        next(iter(part.values()))["type_id"] = 1
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match="token types other than 0"):
        load_encoder(folder)
