"""sentence-transformers models are truncated inside their pipeline, and saved ones load there."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers import models as modules
from transformers import AutoModel

from tests.support.fake_hub import COMMIT, logged_in
from tests.support.families import TINY_CONFIGS
from tests.support.files import edit_json
from truncate_kit.core.errors import FileProblemError, ModelError
from truncate_kit.models.loading import load_encoder, position_limit
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import truncate

TEXTS = ["The Cat sat on the mat", "a red dog", "the BIG cat and not the small dog ran"]


@pytest.fixture(scope="module")
def pipeline(tiny_folder, tmp_path_factory):
    """A model with CLS pooling, Dense + Tanh, Normalize, prompts, a short maximum length and lower-casing."""
    torch.manual_seed(0)
    transformer = modules.Transformer(str(tiny_folder("bert")), max_seq_length=9, do_lower_case=True)
    pooling = modules.Pooling(16, pooling_mode="cls")
    dense = modules.Dense(16, 8, activation_function=torch.nn.Tanh())
    model = SentenceTransformer(
        modules=[transformer, pooling, dense, modules.Normalize()],
        prompts={"query": "a dog and ", "document": ""},
        default_prompt_name="query",
        device="cpu",
    )
    folder = tmp_path_factory.mktemp("pipeline") / "model"
    model.save(str(folder))
    return folder, torch.as_tensor(model.encode(TEXTS))


@pytest.mark.parametrize("architecture", ["roberta", "xlnet"])
def test_how_texts_are_read_is_found_under_the_older_names(pipeline, tmp_path, architecture):
    """With the tokenizer's maximum length the long texts would have other vectors."""
    folder, expected = shutil.copytree(pipeline[0], tmp_path / "model"), pipeline[1]
    reading = (folder / "sentence_bert_config.json").rename(folder / f"sentence_{architecture}_config.json")
    edit_json(reading, max_seq_length=5)
    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = load_encoder(folder)
    assert encoder.max_length == peer.max_seq_length == 5
    shortened = torch.as_tensor(peer.encode(TEXTS))
    assert not torch.allclose(shortened, expected, atol=1e-3)
    torch.testing.assert_close(encoder.vectors(TEXTS), shortened, atol=1e-5, rtol=1e-4)
    save_encoder(encoder, tmp_path / "saved")
    saved = load_encoder(tmp_path / "saved")
    assert (saved.max_length, saved.lower_case) == (5, encoder.lower_case)
    assert encoder_digest(saved) == encoder_digest(encoder) != encoder_digest(load_encoder(pipeline[0]))


def test_special_tokens_keep_their_case(tiny_folder, tmp_path):
    folder = save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "model")
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    texts = ["The CAT [MASK] SAT [SEP] on", "[MASK]", "THE dog", ""]
    expected = torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(texts))
    encoder = load_encoder(folder)
    torch.testing.assert_close(encoder.vectors(texts), expected, atol=1e-5, rtol=1e-4)
    assert encoder.token_ids(texts)[1:3] == load_encoder(tiny_folder("bert")).token_ids(["[MASK]", "the dog"])


@pytest.mark.parametrize("lacking", [["2_Dense"], [""], []])
@pytest.mark.parametrize("extra", ["2_Dense/training.bin", "pytorch_model.bin"])
def test_weights_on_the_hub_are_fetched_in_the_form_they_have(pipeline, tmp_path, monkeypatch, lacking, extra):
    """lacking: folders of modules with weights in a .bin file only. extra: a file not needed otherwise."""
    folder, expected = shutil.copytree(pipeline[0], tmp_path / "model"), pipeline[1]
    (folder / extra).write_bytes(b"not for us")
    for place in lacking:
        torch.save(load_file(folder / place / "model.safetensors"), folder / place / "pytorch_model.bin")
        (folder / place / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with logged_in(monkeypatch) as hub:
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        hub.repos["owner/name"] = {"private": False, "files": files}
        encoder = load_encoder("owner/name")
    torch.testing.assert_close(encoder.vectors(TEXTS), expected, atol=1e-5, rtol=1e-4)
    fetched = {path.rpartition(f"/{COMMIT}/")[2] for path in hub.asked if path.startswith("GET /owner/name/resolve/")}
    assert (extra in fetched) == (extra == "pytorch_model.bin" and "" in lacking)


@pytest.mark.parametrize("layer", [0, 2])
def test_truncated_inside_its_pipeline_and_loaded_by_sentence_transformers(pipeline, layer, tmp_path):
    folder, _ = pipeline
    cut = truncate(load_encoder(folder), layer)
    save_encoder(cut, tmp_path / "cut", model_card="# card")
    reloaded = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert [type(module).__name__ for module in reloaded] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert reloaded.prompts["query"] == "a dog and "
    assert reloaded.default_prompt_name == "query"
    assert reloaded.max_seq_length == 9
    assert len(reloaded[0].auto_model.encoder.layer) == layer
    # An independent way to the same vectors: the full model's own modules on hidden_states[layer].
    peer = SentenceTransformer(str(folder), device="cpu")
    texts, how = ["a dog and " + text.lower() for text in TEXTS], {"padding": True, "truncation": True}
    features = peer[0].tokenizer(texts, max_length=9, return_tensors="pt", **how)
    with torch.no_grad():
        states = peer[0].auto_model(**features, output_hidden_states=True).hidden_states[layer]
        vector = torch.tanh(peer[2].linear(states[:, 0]))
        expected = vector / vector.norm(dim=1, keepdim=True)
    torch.testing.assert_close(torch.as_tensor(reloaded.encode(TEXTS)), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(cut.vectors(TEXTS), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("modes", [["mean", "max"], "weightedmean", "mean_sqrt_len_tokens"])
def test_a_pooling_that_cannot_be_kept_is_replaced_by_one_that_is_named(pipeline, tmp_path, modes):
    folder = shutil.copytree(pipeline[0], tmp_path / "m")
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16, "pooling_mode": modes}))
    with pytest.raises(ModelError):
        load_encoder(folder)
    texts = ["a cat", "the dog sat"]
    expected = load_encoder(pipeline[0], pooling="cls").encode(texts)
    np.testing.assert_array_equal(load_encoder(folder, pooling="cls").encode(texts), expected)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet"])
def test_a_text_may_fill_the_positions_and_no_token_more(family, padding):
    """RoBERTa and its kin count from the padding id on, so a higher one leaves fewer positions."""
    config = copy.copy(TINY_CONFIGS[family])
    config.pad_token_id = padding
    model, limit = AutoModel.from_config(config).eval(), position_limit(config)
    with torch.inference_mode():
        model(torch.full((1, limit), 7))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, limit + 1), 7))


@pytest.mark.parametrize("before", [True, False])
def test_a_workspace_that_is_removed_while_a_model_is_saved(encoder, tmp_path, monkeypatch, before):
    write = encoder.backbone.save_pretrained

    def removing(target, state_dict):
        if before:
            shutil.rmtree(tmp_path / "workspace")
        write(target, state_dict=state_dict)
        if not before:
            shutil.rmtree(tmp_path / "workspace")

    monkeypatch.setattr(encoder.backbone, "save_pretrained", removing)
    with pytest.raises(FileProblemError, match="No such file"):
        save_encoder(encoder, tmp_path / "workspace/lean/model")
    assert not list(tmp_path.rglob("model"))
