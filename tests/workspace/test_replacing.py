"""What a model that is about to be made replaces."""

import pytest

from tests.support.made_results import a_distillation, write_run
from truncate_kit.errors import UsageError
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.replacing import replaced_by


def test_a_model_made_from_another_one_is_named_with_its_graphs(tiny_folder, tmp_path):
    workspace = Workspace(write_run(tmp_path / "run", tiny_folder("bert")))
    assert replaced_by(workspace, "mini <b>") is None  # the sweep's own
    said = replaced_by(workspace, "another")
    assert said == (
        f"{workspace.lean} holds a model made from mini <b>; that of another replaces it, and its graphs go with it: "
        "model.onnx."
    )
    (workspace.lean / "model.onnx").unlink()
    assert replaced_by(workspace, "another").endswith("that of another replaces it.")
    assert replaced_by(Workspace(tmp_path / "nothing"), "another") is None


def test_one_folder_by_two_names_is_one_model(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini <b>").mkdir()
    workspace = Workspace(write_run(tmp_path / "run", tiny_folder("bert")))
    assert replaced_by(workspace, str(tmp_path / "mini <b>")) is None


@pytest.mark.parametrize(("model", "distilled"), [("mini", False), ("another", True), ("another", False)])
def test_what_was_distilled_is_not_replaced_by_anything_else(tiny_folder, tmp_path, model, distilled):
    workspace = Workspace(write_run(tmp_path / "run", tiny_folder("bert"), sweep=None, distilled=a_distillation()))
    with pytest.raises(UsageError, match="holds the model distilled from mini, which would be replaced"):
        replaced_by(workspace, model, distilled=distilled)
    assert replaced_by(workspace, "mini", distilled=True) is None
