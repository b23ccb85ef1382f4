"""Other people's loaders read the exported folder: each with the real library, against this package's vectors."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from tests.support.files import edit_json
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["the cat sat", "a red dog ran under the big blue tree", "not"]


@pytest.fixture(scope="module")
def exported(tiny_folder, tmp_path_factory):
    """The vectors of a truncated encoder, and a home with its export in exported/lean."""
    home = tmp_path_factory.mktemp("loaders")
    encoder = truncate(load_encoder(tiny_folder("electra")), 2)
    export_onnx(encoder, home / "exported/lean", ExportSettings(normalize=False))
    return encoder.vectors(TEXTS), home / "exported/lean"


_CLIENTS = """
import json, sys
import openvino
from fastembed import TextEmbedding
from optimum.intel import OVModelForFeatureExtraction
from fastembed.common.model_description import ModelSource, PoolingType
from optimum.onnxruntime import ORTModelForCustomTasks, ORTModelForFeatureExtraction
from sentence_transformers import SentenceTransformer, export_optimized_onnx_model
from transformers import AutoTokenizer
place, texts = sys.argv[1], json.loads(sys.argv[2])
model = SentenceTransformer(place, backend="onnx", model_kwargs={"provider": "CPUExecutionProvider"})
batch = AutoTokenizer.from_pretrained(place)(texts, padding=True, return_tensors="pt")
exact = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
loaded = OVModelForFeatureExtraction.from_pretrained(place, subfolder="openvino", **exact)
by_openvino = SentenceTransformer(place, backend="openvino", model_kwargs=exact)
def pooled(model):
    states, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
    return ((states * mask).sum(dim=1) / mask.sum(dim=1)).tolist()
whole = ORTModelForCustomTasks.from_pretrained(place)(**batch)
plain = SentenceTransformer(place, backend="onnx", model_kwargs={"export": True, "provider": "CPUExecutionProvider"})
export_optimized_onnx_model(plain, "O3", place)
def fastembed(file):
    TextEmbedding.add_custom_model(file, PoolingType.DISABLED, False, ModelSource(hf="me/lean"), 384, file)
    return [vector.tolist() for vector in TextEmbedding(file, specific_model_path=place).embed(texts)]
def openvinos(file):
    compiled = openvino.Core().compile_model(f"{place}/{file}", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    feeds = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
    return compiled(feeds)["sentence_embedding"].tolist()
print(json.dumps({
    "runs": type(model[0].auto_model).__name__,
    "sentence-transformers": model.encode(texts).tolist(),
    "sentence-transformers, openvino": by_openvino.encode(texts).tolist(),
    "optimum, states": pooled(ORTModelForFeatureExtraction.from_pretrained(place)),
    "optimum-intel": pooled(loaded),
    "optimum, sentence_embedding": whole["sentence_embedding"].tolist(),
    "fastembed": fastembed("onnx/model.onnx"),
    "fastembed, int8": fastembed("onnx/model_quantized.onnx"),
    "openvino": openvinos("onnx/model.onnx"),
    "openvino, int8": openvinos("onnx/model_quantized.onnx"),
}))
"""


_TRANSFORMERS_JS = """
import { env, pipeline } from "@huggingface/transformers";
env.allowRemoteModels = false;
env.localModelPath = process.argv[1];
const found = {};
for (const dtype of ["fp32", "q8"]) {
  const extract = await pipeline("feature-extraction", "lean", { dtype });
  found[dtype] = (await extract(JSON.parse(process.argv[2]), { pooling: "mean", normalize: true })).tolist();
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def both(minilm, tmp_path_factory):
    """Vectors of a truncated encoder and of its int8 graph, and their folder."""
    encoder = truncate(load_encoder(minilm), 1)  # transformers 4 cannot read the tiny models' tokenizers
    folder = tmp_path_factory.mktemp("clients") / "lean"
    export_onnx(encoder, folder)
    pairs = PairSet(
        name="pairs", pairs=tuple(TextPair(text, TEXTS[0], score) for score, text in enumerate(TEXTS)), scale=(0, 2)
    )
    export_onnx(encoder, folder, ExportSettings(precision="int8", budget=100), search_pairs=pairs)
    export_onnx(encoder, folder, ExportSettings(runtime="openvino"))
    return encoder.vectors(TEXTS), OnnxEncoder.load(folder, precision="int8").vectors(TEXTS), folder


def run_client(variable, command, folder):
    """Return the JSON of a client, run by the program or in the folder that an environment variable names."""
    place = os.environ.get(variable)
    if place is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{variable} is not set, and CI must run this test")
        pytest.skip(f"{variable} names no environment with other people's loaders")
    # without this package: its environment is another one
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [*command(place), str(folder), json.dumps(TEXTS)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean, cwd=place if Path(place).is_dir() else None
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_clients_in_python(both):
    """sentence-transformers' ONNX extra needs transformers 4, so clients have an environment of their own."""
    expected, rounded, folder = both
    found = run_client("TRUNCATE_KIT_CLIENTS", lambda python: [python, "-c", _CLIENTS], folder)
    assert found.pop("runs").startswith("ORT")
    for name, vectors in found.items():
        unit = torch.nn.functional.normalize(torch.tensor(vectors), dim=1)
        if name == "openvino, int8":  # other kernels round differently
            assert torch.nn.functional.cosine_similarity(unit, rounded).min() > 0.98
        else:
            torch.testing.assert_close(unit, rounded if "int8" in name else expected, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(shutil.which("node") is None, reason="transformers.js needs Node.js")
def test_transformers_js(both):
    expected, rounded, folder = both
    command = ["node", "--input-type=module", "-e", _TRANSFORMERS_JS]
    found = run_client("TRUNCATE_KIT_NODE", lambda _: command, folder.parent)
    torch.testing.assert_close(torch.tensor(found["fp32"]), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(found["q8"]), rounded, atol=1e-5, rtol=1e-4)


def by_the_snippet(texts, home, monkeypatch):
    """Run the lines of the page on serving with these texts, from the export in home/exported/lean; return vectors."""
    page = (ROOT / "docs/guides/serve.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (snippet,) = (block for block in blocks if "onnxruntime" in block and "Tokenizer" in block)
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 10
    assert "truncate_kit" not in snippet
    monkeypatch.chdir(home)
    names: dict[str, object] = {}
    exec(re.sub(r"texts = \[.*\]", lambda _: f"texts = {texts!r}", snippet), names)
    return names["vectors"]


def test_the_lines_of_the_page_give_these_vectors(exported, monkeypatch):
    vectors, folder = exported
    np.testing.assert_allclose(by_the_snippet(TEXTS, folder.parents[1], monkeypatch), vectors, atol=1e-5, rtol=1e-4)


def test_after_what_the_page_says_of_prompts_and_casing(exported, tmp_path, monkeypatch):
    _, folder = exported
    ours = Path(shutil.copytree(folder, tmp_path / "exported/lean"))
    prompts = {"prompts": {"query": "The Red "}, "default_prompt_name": "query"}
    edit_json(ours / "config_sentence_transformers.json", **prompts)
    edit_json(ours / "sentence_bert_config.json", do_lower_case=True)
    expected = load_encoder(ours).vectors(TEXTS)
    found = by_the_snippet([f"The Red {text}".lower() for text in TEXTS], tmp_path, monkeypatch)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)
    assert not np.allclose(by_the_snippet(TEXTS, tmp_path, monkeypatch), expected, atol=1e-2)


def test_text_embeddings_inference_finds_what_it_reads(exported):
    """The files and fields that its router and its ONNX backend read.

    router/src/lib.rs and backends/ort/src/lib.rs of huggingface/text-embeddings-inference, July 2026.
    """
    _, folder = exported

    def read(name):
        return json.loads((folder / name).read_text(encoding="utf-8"))

    config, pooling = read("config.json"), read("1_Pooling/config.json")
    assert all(isinstance(name, str) for name in config["architectures"])
    assert isinstance(config["model_type"], str)
    assert isinstance(config["max_position_embeddings"], int)
    assert (pooling["pooling_mode_cls_token"], pooling["pooling_mode_mean_tokens"]) == (False, True)
    assert 0 < read("sentence_bert_config.json")["max_seq_length"] <= config["max_position_embeddings"]
    assert isinstance(read("config_sentence_transformers.json").get("prompts", {}), dict)
    assert (folder / "model.safetensors").is_file()  # its other backends
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    readable = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
    assert {value.name for value in session.get_inputs()} <= readable
