"""What pretraining wrote becomes half-precision weights."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.miniatures import bundle, pretrain
from tests.support.families import WORDS
from truncate_kit.models.loading import load_encoder

MODELS = ("bert", "electra-discriminator", "electra-generator")
LAYERS = range(4)


def sentence(draw):
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 9)))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A tiny pretraining of all three with one snapshot each."""
    draw = random.Random(0)
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("\n".join(sentence(draw) for _ in range(120)), encoding="utf-8")
    models = tmp_path_factory.mktemp("models")
    for model in ("bert", "electra"):
        options = [model, "--text", str(text), "--out", str(models), "--steps", "9", "--batch-size", "40"]
        pretrain.main([*options, "--every", "3", "--keep", "6"])
    return models


def test_bundled_miniatures_are_the_pretrained_ones_in_half_precision(pretrained, tmp_path):
    bundle.main(["--models", str(pretrained), "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"mini-{model}" for model in MODELS]
    for model in MODELS:
        folder = tmp_path / f"mini-{model}"
        stored, trained = (load_file(place / "model.safetensors") for place in (folder, pretrained / model))
        assert stored.keys() == trained.keys()
        assert all(torch.equal(stored[name], trained[name].half()) for name in trained)
        assert next(load_encoder(folder).backbone.parameters()).dtype == torch.float32
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert (settings["tokenizer_class"], settings["model_max_length"]) == ("PreTrainedTokenizerFast", 128)
