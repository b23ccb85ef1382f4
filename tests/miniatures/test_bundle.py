"""What pretraining wrote becomes half-precision weights."""

import json
import shutil

import torch
from safetensors.torch import load_file

from benchmarks.miniatures import bundle
from truncate_kit.models.loading import load_encoder


def test_bundled_miniatures_are_the_pretrained_ones_in_half_precision(finished, tmp_path):
    models = tmp_path / "models"
    for run, names in bundle.RUNS.items():
        for name in names:
            shutil.copytree(finished(run) / name, models / name)
    bundle.main(["--models", str(models), "--out", str(tmp_path / "out")])
    folders = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in folders] == ["mini-bert", "mini-electra-discriminator", "mini-electra-generator"]
    for folder in folders:
        assert (bundle.MINIATURES / folder.name).is_dir()
        trained = load_file(models / folder.name.removeprefix("mini-") / "model.safetensors")
        stored = load_file(folder / "model.safetensors")
        assert stored.keys() == trained.keys()
        assert all(torch.equal(stored[name], trained[name].half()) for name in trained)
        assert next(load_encoder(folder).backbone.parameters()).dtype == torch.float32
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert (settings["tokenizer_class"], settings["model_max_length"]) == ("PreTrainedTokenizerFast", 128)
