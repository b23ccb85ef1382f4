"""`--push-to` against a hub on this machine: private, only when asked, and never into a public place by accident."""

import os
import subprocess
import sys

import pytest

from tests.fake_hub import TOKEN, FakeHub
from truncate_kit.encoders import load_encoder, truncate
from truncate_kit.export import export_onnx

WORDS = ["the cat sat", "a red dog", "the big tree", "not a mat", "a small blue cat", "the dog ran"]
PAIRS = "sentence1,sentence2,score\n" + "".join(
    f"{a},{b},{(3 * i + 2 * j) % 6}\n" for i, a in enumerate(WORDS) for j, b in enumerate(WORDS) if i < j
)
CODE = """
import sys
from pathlib import Path
if sys.argv[1] == "folder":
    from truncate_kit.pushing import push_folder
    from truncate_kit.errors import TruncateKitError
    try:
        print(push_folder(Path(sys.argv[2]), sys.argv[3], public="--public" in sys.argv).to_json())
    except TruncateKitError as error:
        print(error, error.hint)
        raise SystemExit(1)
else:
    from truncate_kit_cli.app import main
    main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("push") / "model"
    export_onnx(truncate(load_encoder(tiny_folder("bert")), 1), folder)
    (folder / "README.md").write_text("---\ntags:\n- truncated\n---\n# A model\n")
    (folder / ".lock").write_text("")
    return folder


@pytest.fixture
def hub():
    with FakeHub() as hub:
        yield hub


def run(hub, *arguments, token=TOKEN, **environment):
    """Exit code, stdout and stderr in a process of its own: the hub's address is read when it is imported."""
    settings = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | settings | environment,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_folder_arrives_whole_and_private(hub, folder):
    code, out, err = run(hub, "folder", folder, "me/lean")
    assert code == 0, out + err
    assert '"private": true' in out
    repo = hub.repos["me/lean"]
    assert repo["private"]
    expected = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert repo["files"] == expected
    assert {"model.onnx", "model.safetensors", "1_Pooling/config.json", "README.md"} <= set(expected)


def test_public_only_when_told(hub, folder):
    assert run(hub, "folder", folder, "me/open", "--public")[0] == 0
    assert not hub.repos["me/open"]["private"]
    hub.repos["me/open"]["files"].clear()
    code, out, _ = run(hub, "folder", folder, "me/open")
    assert code == 1
    assert "me/open on the hub is public" in out
    assert hub.repos["me/open"]["files"] == {}


def test_who_may_not_write_is_told_how_to_log_in(hub, folder):
    code, out, _ = run(hub, "folder", folder, "me/lean", token="hf_wrong")
    assert (code, "not logged in" in out, "hf auth login" in out) == (1, True, True)
    assert hub.repos == {}


def test_a_hub_that_is_not_there(hub, folder):
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    code, out, _ = run(hub, "folder", folder, "me/lean", **nowhere)
    assert (code, "cannot be reached" in out) == (1, True)
    code, out, _ = run(hub, "folder", folder, "me/lean", HF_HUB_OFFLINE="1")
    assert (code, "HF_HUB_OFFLINE" in out) == (1, True)


def test_the_command_pushes_when_asked_and_never_else(hub, tiny_folder, tmp_path):
    (tmp_path / "pairs.csv").write_text(PAIRS)
    common = ("export", tiny_folder("bert"), "--onnx", "--data", tmp_path / "pairs.csv", "--out", tmp_path / "out")
    code, _, err = run(hub, *common)
    assert (code, hub.asked) == (0, []), err
    wrongs = {"no owner": ("--push-to", "no owner"), "whose": ("--push-to", "lean"), "--public": ("--public",)}
    for named, wrong in wrongs.items():
        code, _, err = run(hub, *common, *wrong)
        assert (code, named in err, hub.asked) == (1, True, [])
    code, _, err = run(hub, *common, "--push-to", "me/lean")
    assert code == 0, err
    assert f"Pushed: {hub.endpoint}/me/lean (private)" in err
    assert hub.repos["me/lean"]["files"]["model.onnx"] == (tmp_path / "out/lean/model.onnx").read_bytes()
