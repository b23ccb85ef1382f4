"""Which model and which data a command takes where none is named, and what it says where there is none."""

import re

import numpy as np
import pytest

from tests.support.commands import fails, refused, run_json
from tests.support.files import SENTENCES, write_table
from truncate_kit.core.files import run_lock
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

FAST = ("--seeds", 1, "--epochs", 1)


@pytest.fixture(autouse=True)
def files(tmp_path):
    """Pairs and texts in the folder of the command."""
    rows = [(text, SENTENCES[(5 * place + 3) % 42], place % 6) for place, text in enumerate(SENTENCES)]
    write_table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "score"), rows)
    (tmp_path / "texts.txt").write_text("the cat sat\na dog ran\n")
    (tmp_path / "more.txt").write_text("\n".join(SENTENCES) + "\n")


@pytest.mark.parametrize(
    "command",
    [("encode", "texts.txt"), ("export", "--onnx"), ("bench",), ("bench", "--quick"), ("evaluate",)],
    ids=lambda command: " ".join(command),
)
def test_what_needs_a_finished_model_takes_no_other(run, tmp_path, tiny_folder, command, capfd):
    assert "there is no lean model exported/lean." in fails(capfd, *command)
    # Neither what the last command read, nor a model of another kind: that one is named.
    run("analyze", tiny_folder("bert"), "--data", "pairs.csv", "--reference", "none")
    save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "exported/combined")
    assert "Hint: Name exported/combined, or make one with" in fails(capfd, *command)
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
def test_one_command_at_a_time_writes_into_a_workspace(tmp_path, tiny_folder, command, capfd):
    model, lean = tiny_folder("bert"), tmp_path / "exported/lean"
    (tmp_path / "many.txt").write_text("".join(f"{text} and {place}\n" for place in range(5) for text in SENTENCES))
    (tmp_path / "study.toml").write_text(f'models = [{{ model = "{model}" }}]\ntasks = [{{ data = "pairs.csv" }}]\n')
    if command in ("export", "bench"):
        save_encoder(truncate(load_encoder(model), 1), lean)
    named = "study.toml" if command == "study" else None if command == "bench" else lean if lean.exists() else model
    with run_lock(tmp_path / ("exported/study" if command == "study" else "exported")):
        problem = refused(capfd, command, *([named] if named else []), *WRITERS[command])
    assert "Error: Another process is working in" in problem
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
def test_a_miniature_is_taken_only_where_nothing_is_given(tmp_path, command, capfd):
    problem = refused(capfd, *command)
    assert "No model is named, and no earlier command in exported used a model." in problem
    assert "mini-electra-discriminator" in problem
    assert not (tmp_path / "exported").exists()


def test_a_cut_is_taken_up_and_gives_way_to_cuts_only(run, tmp_path, tiny_folder, capfd):
    for layer in (1, 2):
        assert f"Layer {layer} of 3, not trained" in run("cut", tiny_folder("bert"), "--layer", layer)[0]
    assert f"{tiny_folder('bert')}, layer 2 of 3, not trained." in run("encode", "texts.txt")[1]
    expected = truncate(load_encoder(tiny_folder("bert")), 2).vectors(["the cat sat", "a dog ran"])
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=1e-6)
    fast = ("--backends", "torch-fp32", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--quick")
    found = run_json(capfd, "bench", "--data", "pairs.csv", *fast)
    assert [model["layer"] for model in found["models"]] == [2, 3]  # against what it was cut from
    before = (tmp_path / "exported/lean/model.safetensors").read_bytes()
    assert "a cut of exported/lean would replace it." in refused(capfd, "cut", "exported/lean", "--layer", 1)
    run("finetune", tiny_folder("bert"), "--data", "pairs.csv", *FAST, "--layer", 1)
    assert (tmp_path / "exported/lean/model.safetensors").read_bytes() != before
    assert "exported/lean holds a model; a cut of " in refused(capfd, "cut", tiny_folder("bert"), "--layer", 2)
    asked = ("--layer", 9, "--workspace", "other")
    assert "Layer 9 does not exist" in refused(capfd, "cut", tiny_folder("bert"), *asked)
    assert not (tmp_path / "other").exists()


def test_what_training_replaces_is_said_and_a_distilled_model_is_kept(run, tmp_path, tiny_folder, capfd):
    first, second = tiny_folder("bert"), tiny_folder("electra")
    run("finetune", first, "--data", "pairs.csv", *FAST, "--layer", 1)
    (tmp_path / "exported/lean/onnx").mkdir()
    (tmp_path / "exported/lean/onnx/model.onnx").write_bytes(b"")
    _, err = run("finetune", second, "--data", "pairs.csv", *FAST, "--layer", 1)
    assert f"holds a model made from {first}; one made from {second} replaces it" in err
    assert "and its graphs: model.onnx." in err
    (tmp_path / "many.txt").write_text("".join(f"{one} and {other}\n" for one in SENTENCES for other in SENTENCES[:6]))
    run("distill", first, "--texts", "many.txt", "--blocks", "1", "--workspace", "taught")
    before = (tmp_path / "taught/lean/model.safetensors").read_bytes()
    (tmp_path / "rows.csv").write_text("anchor,positive\n" + "".join(f"a cat {n},the cat {n}\n" for n in range(8)))
    for command in (
        ("finetune", first, "--data", "pairs.csv", *FAST, "--layer", 1),
        ("distill", second, "--texts", "many.txt", "--blocks", "1"),
        ("contrast", first, "--objective", "in-batch", "--triplets", "rows.csv", "--data", "pairs.csv", "--epochs", 1),
    ):
        problem = refused(capfd, *command, "--workspace", "taught")
        assert f"taught/lean holds the model distilled from {first}, which would be replaced." in problem
    assert (tmp_path / "taught/lean/model.safetensors").read_bytes() == before


def test_status_lists_what_is_there_and_clean_frees_the_copies(run, tmp_path, tiny_folder, capfd):
    assert run("status")[0] == "exported: 0 models, 0.0 MB.\n"
    assert not (tmp_path / "exported").exists()
    run("finetune", tiny_folder("bert"), "--data", "pairs.csv", *FAST, "--layer", 2)
    out, err = run("status")
    assert err == "Next: truncate-kit report exported --open\n"
    assert re.search(r"^lean +\d", out, re.MULTILINE)
    assert "layer 2 of 3, fine-tuned on" in out
    assert re.search(r"trials/\w+ .* run: \d+ finished; \d+\.\d MB to free", out)
    (tmp_path / "exported/distillation").mkdir()
    (tmp_path / "exported/distillation/tokens.bin").write_bytes(b"0" * 2_500_000)
    assert re.search(r"^distillation +2\.5", run("status")[0], re.MULTILINE)
    found = run_json(capfd, "status")
    assert run("status", "exported", "--json") == run("status", "--workspace", "exported", "--json")
    assert "two workspaces" in fails(capfd, "status", "one", "--workspace", "other")
    for named in (["nowhere"], ["--workspace", "nowhere"]):
        assert "There is no folder nowhere" in fails(capfd, "status", *named)
    assert [model["path"] for model in found["models"]] == ["exported/full", "exported/lean"]
    cleaned = run_json(capfd, "status", "--clean")
    assert cleaned["freed_bytes"] == sum(run["spare_bytes"] for run in found["runs"]) > 0
    assert not list(tmp_path.glob("exported/trials/**/*.safetensors"))
    run("evaluate", "--data", "pairs.csv")
