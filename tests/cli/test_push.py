"""`--push-to` against a hub on this machine: private, only when asked, and never into a public place by accident."""

import shutil

import pytest
from huggingface_hub import constants

from tests.support.commands import fails, run_both
from tests.support.fake_hub import logged_in
from tests.support.files import pairs_file
from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError
from truncate_kit.export.exporting import export_onnx, push_folder
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.cutting import cut


@pytest.fixture(scope="module")
def folder(exported_folder, tmp_path_factory):
    folder = shutil.copytree(exported_folder, tmp_path_factory.mktemp("push") / "model")
    (folder / "README.md").write_text("---\ntags:\n- truncated\n---\n# A model\nSentenceTransformer('FOLDER')\n")
    (folder / ".lock").write_text("")
    return folder


@pytest.fixture
def hub(monkeypatch):
    with logged_in(monkeypatch) as hub:
        yield hub


def test_a_folder_arrives_whole_and_private(hub, folder):
    done = push_folder(folder, "me/lean")
    assert done[::2] == (f"{hub.endpoint}/me/lean", True)
    repo = hub.repos["me/lean"]
    expected = {
        str(path.relative_to(folder)): path.read_bytes().replace(b"'FOLDER'", b"'me/lean'")
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "origin.json")
    }
    assert repo == {"private": True, "files": expected}
    assert {"onnx/model.onnx", "model.safetensors", "1_Pooling/config.json", "README.md"} <= set(expected)


def test_no_file_says_where_something_lay_on_this_machine(hub, tiny_folder, tmp_path):
    """The names of folders are those of users and their clients; the records for the workspace stay here."""
    made = tmp_path / "lean"
    shutil.copytree(tiny_folder("bert"), tmp_path / "client/model")
    cut(load_encoder(tmp_path / "client/model"), (1, 2), out=tmp_path)
    export_onnx(load_encoder(made), made)
    assert (made / "cut.json").is_file()
    push_folder(made, "me/lean")
    files = hub.repos["me/lean"]["files"]
    assert {"export.json", "cut.json"} & {*files} == {"export.json"}
    assert [name for name, content in files.items() if str(tmp_path).encode() in content] == []


@pytest.mark.parametrize(("load", "file"), [(load_encoder, "model.safetensors"), (OnnxEncoder.load, "onnx/model.onnx")])
def test_an_encoder_pushes_itself(hub, folder, load, file):
    assert load(folder).push_to_hub("me/own") == f"{hub.endpoint}/me/own"
    repo = hub.repos["me/own"]
    assert repo["private"]
    assert {file, "modules.json", "tokenizer.json"} <= repo["files"].keys()


def test_public_only_when_told(hub, folder):
    assert not push_folder(folder, "me/open", public=True)[2]
    hub.repos["me/open"]["files"].clear()
    with pytest.raises(UsageError, match="me/open on the hub is public"):
        push_folder(folder, "me/open")
    assert hub.repos["me/open"] == {"private": False, "files": {}}


@pytest.mark.parametrize("base", ["/home/me/model", "./model", "{here}", "[org/model, ../model]"])
def test_a_base_that_only_this_machine_has_stays_here(base, hub, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    card = tmp_path / "model/README.md"
    card.write_text(f"---\nbase_model: {base.format(here=tmp_path)}\n---\n")
    with pytest.raises(ModelError, match="not on the hub") as refused:
        push_folder(tmp_path / "model", "me/lean")
    assert "base_model" in refused.value.hint
    assert hub.asked == []
    card.write_text("---\nbase_model: org/model\n---\n")
    assert push_folder(tmp_path / "model", "me/own")[2]


def test_who_may_not_write_is_told_how_to_log_in(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(TruncateKitError, match="The upload to me/lean failed") as found:
        push_folder(folder, "me/lean")
    assert "hf auth login" in found.value.hint
    assert hub.repos == {}


def test_a_hub_that_is_not_there(hub, folder, monkeypatch):
    with pytest.raises(TruncateKitError, match="The upload to me/lean failed"):
        push_folder(folder, "me/lean", endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TruncateKitError, match="The upload to me/lean failed"):
        push_folder(folder, "me/lean")
    assert hub.asked == []


def test_the_command_pushes_when_asked_and_never_else(hub, tiny_folder, tmp_path, capsys):
    pairs_file(tmp_path / "pairs.csv", "score", range(6))
    common = ("export", tiny_folder("bert"), "--onnx", "--data", "pairs.csv")
    run_both(capsys, *common)
    wrongs = {"no owner": ("--push-to", "no owner"), "'lean'": ("--push-to", "lean"), "--public": ("--public",)}
    for named, wrong in wrongs.items():
        assert named in fails(capsys, *common, *wrong)
    assert hub.asked == []
    assert f"{hub.endpoint}/me/lean (private)" in run_both(capsys, *common, "--push-to", "me/lean")[1]
    assert hub.repos["me/lean"]["files"]["onnx/model.onnx"] == (tmp_path / "exported/lean/onnx/model.onnx").read_bytes()
