"""Which model and which data a command takes where none is named, and what it says where there is none."""

import json
import re

import numpy as np
import pytest

from tests.support.files import SENTENCES
from truncate_kit.core.files import run_lock
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

PAIRS = "sentence1,sentence2,score\n" + "".join(
    f"{text},{SENTENCES[(5 * place + 3) % len(SENTENCES)]},{place % 6}\n" for place, text in enumerate(SENTENCES)
)
FAST = ("--seeds", 1, "--epochs", 1)


@pytest.fixture(autouse=True)
def files(tmp_path):
    """Pairs and texts in the folder of the command."""
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "texts.txt").write_text("the cat sat\na dog ran\n")
    (tmp_path / "more.txt").write_text("\n".join(SENTENCES) + "\n")


@pytest.mark.parametrize(
    "command",
    [("encode", "texts.txt"), ("export", "--onnx"), ("bench",), ("bench", "--quick"), ("evaluate",)],
    ids=lambda command: " ".join(command),
)
def test_what_needs_a_finished_model_takes_no_other(run, tmp_path, tiny_folder, command):
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert "Error: No model is named, and there is no lean model exported/lean." in err
    assert "Hint: Name a model, or make one with finetune, contrast, distill or cut." in err
    # Neither what the last command read, nor a model of another kind: that one is named.
    assert run("analyze", tiny_folder("bert"), "--data", "pairs.csv")[0] == 0
    save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "exported/combined")
    code, _, err = run(*command)
    assert code == 1
    assert "Hint: Name exported/combined, or make one with" in err
    assert not list(tmp_path.glob("**/*.onnx"))
    assert not list(tmp_path.glob("*.npy"))


WRITERS = {
    "finetune": ("--data", "pairs.csv", "--layer", 1, *FAST),
    "distill": ("--texts", "many.txt", "--blocks", "1,3"),
    "cut": ("--layer", 1),
    "contrast": ("--objective", "dropout", "--texts", "many.txt", "--data", "pairs.csv", "--layer", 1, *FAST),
    "freeze": ("--data", "pairs.csv", "--layer", 1, *FAST),
    "combine": ("--data", "pairs.csv"),
    "export": ("--onnx", "--data", "pairs.csv"),
    "bench": ("--quick", "--data", "pairs.csv"),
    "study": (),
}


@pytest.mark.parametrize("command", WRITERS)
def test_one_command_at_a_time_writes_into_a_workspace(run, tmp_path, tiny_folder, command):
    model, lean = tiny_folder("bert"), tmp_path / "exported/lean"
    (tmp_path / "many.txt").write_text("".join(f"{text} and {place}\n" for place in range(5) for text in SENTENCES))
    (tmp_path / "study.toml").write_text(f'models = [{{ model = "{model}" }}]\ntasks = [{{ data = "pairs.csv" }}]\n')
    if command in ("export", "bench"):
        save_encoder(truncate(load_encoder(model), 1), lean)
    named = "study.toml" if command == "study" else None if command == "bench" else lean if lean.exists() else model
    with run_lock(tmp_path / ("exported/study" if command == "study" else "exported")):
        code, out, err = run(command, *([named] if named else []), *WRITERS[command])
    assert (code, out) == (1, "")
    assert "Error: Another process is working in" in err
    assert not list(tmp_path.glob("exported/**/*.onnx")) + list(tmp_path.glob("exported/*.json"))


@pytest.mark.parametrize(
    "command",
    [
        ("distill", "--texts", "texts.txt"),
        ("combine",),
        ("finetune", "--data", "pairs.csv"),
        ("finetune", "--teacher", "mini-bert"),
        ("analyze", "--data", "pairs.csv"),
    ],
    ids=lambda command: " ".join(command),
)
def test_a_miniature_is_taken_only_where_nothing_is_given(run, tmp_path, command):
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert "Error: No model is named, and no earlier command in exported used a model." in err
    assert "mini-electra-discriminator" in err
    assert not (tmp_path / "exported").exists()


def test_a_cut_is_taken_up_and_gives_way_to_cuts_only(run, tmp_path, tiny_folder):
    whole = load_encoder(tiny_folder("bert"))
    for layer in (1, 2):
        code, out, err = run("cut", tiny_folder("bert"), "--layer", layer)
        assert code == 0, err
        assert f"Layer {layer} of 3, not trained" in out
    code, _, err = run("encode", "texts.txt")
    assert code == 0, err
    assert f"{tiny_folder('bert')}, layer 2 of 3, not trained." in err
    expected = truncate(whole, 2).vectors(["the cat sat", "a dog ran"])
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=1e-6)
    fast = ("--backends", "torch-fp32", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--quick", "--json")
    code, out, err = run("bench", "--data", "pairs.csv", *fast)
    assert code == 0, err
    assert [model["layer"] for model in json.loads(out)["models"]] == [2, 3]  # against what it was cut from
    before = (tmp_path / "exported/lean/model.safetensors").read_bytes()
    assert "holds a model; a cut of exported/lean would replace it." in run("cut", "exported/lean", "--layer", 1)[2]
    assert run("finetune", tiny_folder("bert"), "--data", "pairs.csv", *FAST, "--layer", 1)[0] == 0
    assert (tmp_path / "exported/lean/model.safetensors").read_bytes() != before
    code, out, err = run("cut", tiny_folder("bert"), "--layer", 2)
    assert (code, out) == (1, "")
    assert "Error: exported/lean holds a model; a cut of " in err
    assert "Hint: Name another folder with --workspace. To use the model in" in err
    assert "Layer 9 does not exist" in run("cut", tiny_folder("bert"), "--layer", 9, "--workspace", "other")[2]
    assert not (tmp_path / "other").exists()


def test_what_training_replaces_is_said_and_a_distilled_model_is_kept(run, tmp_path, tiny_folder):
    first, second = tiny_folder("bert"), tiny_folder("electra")
    assert run("finetune", first, "--data", "pairs.csv", *FAST, "--layer", 1)[0] == 0
    (tmp_path / "exported/lean/model.onnx").write_bytes(b"")
    code, _, err = run("finetune", second, "--data", "pairs.csv", *FAST, "--layer", 1)
    assert code == 0, err
    assert f"holds a model made from {first}; one made from {second} replaces it" in err
    assert "and its graphs: model.onnx." in err
    (tmp_path / "many.txt").write_text("".join(f"{one} and {other}\n" for one in SENTENCES for other in SENTENCES[:6]))
    taught = run("distill", first, "--texts", "many.txt", "--blocks", "1", "--workspace", "taught")
    assert taught[0] == 0, taught
    before = (tmp_path / "taught/lean/model.safetensors").read_bytes()
    (tmp_path / "rows.csv").write_text("anchor,positive\n" + "".join(f"a cat {n},the cat {n}\n" for n in range(8)))
    for command in (
        ("finetune", first, "--data", "pairs.csv", *FAST, "--layer", 1),
        ("distill", second, "--texts", "many.txt", "--blocks", "1"),
        ("contrast", first, "--objective", "in-batch", "--triplets", "rows.csv", "--data", "pairs.csv", "--epochs", 1),
    ):
        code, out, err = run(*command, "--workspace", "taught")
        assert (code, out) == (1, "")
        assert f"taught/lean holds the model distilled from {first}, which would be replaced." in err
        assert "Hint: Name another folder as --workspace, or move taught/lean away." in err
    assert (tmp_path / "taught/lean/model.safetensors").read_bytes() == before


def test_status_lists_what_is_there_and_clean_frees_the_copies(run, tmp_path, tiny_folder):
    code, out, _ = run("status")
    assert (code, out) == (0, "exported: 0 models, 0.0 MB.\n")
    assert not (tmp_path / "exported").exists()
    assert run("finetune", tiny_folder("bert"), "--data", "pairs.csv", *FAST, "--layer", 2)[0] == 0
    code, out, err = run("status")
    assert (code, err) == (0, "")
    assert "Models and runs in exported" in out
    assert re.search(r"^lean +\d", out, re.MULTILINE)
    assert "layer 2 of 3, fine-tuned on" in out
    assert re.search(r"trials/\w+ .* run: \d+ finished; \d+\.\d MB to free", out)
    assert "sweep.json" in out
    assert "--clean frees" in out
    (tmp_path / "exported/distillation").mkdir()
    (tmp_path / "exported/distillation/tokens.bin").write_bytes(b"0" * 2_500_000)
    assert re.search(r"^distillation +2\.5", run("status")[1], re.MULTILINE)
    found = json.loads(run("status", "--json")[1])
    assert run("status", "exported", "--json") == run("status", "--workspace", "exported", "--json")
    assert "two workspaces" in run("status", "one", "--workspace", "other")[2]
    assert "There is no folder nowhere" in run("status", "nowhere")[2]
    assert "There is no folder nowhere" in run("status", "--workspace", "nowhere")[2]
    assert [model["path"] for model in found["models"]] == ["exported/full", "exported/lean"]
    assert found["file_bytes"] == sum(path.stat().st_size for path in tmp_path.glob("exported/**/*") if path.is_file())
    cleaned = json.loads(run("status", "--clean", "--json")[1])
    assert cleaned["freed_bytes"] == sum(run["spare_bytes"] for run in found["runs"]) > 0
    assert not list(tmp_path.glob("exported/trials/**/*.safetensors"))
    assert run("evaluate", "--data", "pairs.csv")[0] == 0
