"""A model folder that is replaced while it is read: refused, whatever was read of the old and of the new one."""

import shutil

import pytest

from truncate_kit.errors import ModelError
from truncate_kit.models import encoder_digest, load_encoder, loading, save_encoder, truncate


@pytest.mark.parametrize("depth", [2, 1])  # of like shapes, which would be mixed; of others, whose error tells nothing
@pytest.mark.parametrize("step", ["read_pipeline", "reader_of", "load_backbone"])
def test_a_folder_that_is_replaced_at_any_step_of_reading(step, depth, tiny_folder, tmp_path, monkeypatch):
    encoder, model = load_encoder(tiny_folder("bert")), tmp_path / "model"
    other = truncate(encoder, depth)
    other.max_length = 10
    for weight in other.backbone.parameters():
        weight.data *= 1.5
    save_encoder(truncate(encoder, 2), model)
    read = getattr(loading, step)

    def replaced_first(*arguments, **options):
        save_encoder(other, model)
        return read(*arguments, **options)

    monkeypatch.setattr(loading, step, replaced_first)
    with pytest.raises(ModelError, match="was changed while it was read"):
        load_encoder(model)
    monkeypatch.undo()
    assert encoder_digest(load_encoder(model)) == encoder_digest(other)


def test_what_others_write_beside_a_model_does_not_disturb(tiny_folder, tmp_path, monkeypatch):
    model, read = shutil.copytree(tiny_folder("bert"), tmp_path / "model"), loading.reader_of

    def beside(*arguments, **options):
        for name in ("model.onnx", "export.json", "README.md"):
            (model / name).write_text("{}")
        return read(*arguments, **options)

    monkeypatch.setattr(loading, "reader_of", beside)
    assert load_encoder(model).depth == 3
