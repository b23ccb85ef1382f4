"""What runs on a GPU gives what the processor gives: vectors, graphs, training, every command that takes a device.

Nothing here runs without one. `python -m pytest tests/cuda` needs, beside the package and pytest, onnxruntime-gpu for
the graphs, and neither datasets nor the evaluation data.
"""

import json

import pytest
import torch

from tests.support.families import TEXTS, TINY_CONFIGS
from tests.support.pair_runs import pair_run
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.loop import isolated
from truncate_kit_cli.app import main

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
SENTENCES = [f"a dog {'runs and ' * (number % 9)}sees {number} birds" for number in range(300)]
PAIRS = [f"{SENTENCES[place]},{SENTENCES[-place]},{place % 6}" for place in range(1, 121)]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with texts and pairs of sentences made up here, and a short model learned from them."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "texts.txt").write_text("\n".join(SENTENCES))
    (folder / "data").mkdir()
    for part, step in (("train", 1), ("dev", 2), ("test", 3)):
        (folder / "data" / f"{part}.csv").write_text("\n".join(["sentence1,sentence2,score", *PAIRS[::step]]))
    return folder


def graph_runs() -> bool:
    """Whether ONNX Runtime has its provider for CUDA."""
    onnxruntime = pytest.importorskip("onnxruntime")
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_family_gives_the_vectors_of_the_processor(name, tiny_folder):
    folder = tiny_folder(name)
    wanted, found = (load_encoder(folder, device=device).vectors(TEXTS).cpu() for device in ("cpu", DEVICE))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "deberta-v3", "modernbert", "mpnet", "qwen3", "nomic-bert"])
@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_graphs_give_the_vectors_of_torch(name, kind, tiny_folder, tmp_path):
    if not graph_runs():
        pytest.skip("ONNX Runtime is here without CUDA")
    encoder = load_encoder(tiny_folder(name))
    export_onnx(encoder, tmp_path, ExportSettings(precision=kind, target="cuda"))
    graph = OnnxEncoder.load(tmp_path, precision=kind, device=DEVICE)
    wanted, found = encoder.vectors(TEXTS), torch.as_tensor(graph.vectors(TEXTS))
    assert torch.cosine_similarity(found.float(), wanted).min() > (0.9999 if kind == "fp32" else 0.998)


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path):
    def run():
        made = pair_run("mini-bert", learning_rate=1e-4)
        made.encoder.to(DEVICE)
        return made

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole, begun, resumed = run(), run(), run()
        for one in (whole, begun, resumed):
            one.interval, one.stages = 1, one.total
        whole.train()
        begun.train(checkpoint=tmp_path / "run.ckpt", stop_after=1)
        begun.store(tmp_path / "run.ckpt")
        resumed.train(checkpoint=tmp_path / "run.ckpt")
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in whole.trained.state_dict().items():
        torch.testing.assert_close(resumed.trained.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_training_leaves_the_gpus_generator_and_autocast_alone():
    torch.cuda.manual_seed(5)
    wanted = torch.rand(4, device=DEVICE)
    torch.cuda.manual_seed(5)
    with torch.autocast(DEVICE, torch.bfloat16):
        with isolated():
            assert not torch.is_autocast_enabled(DEVICE)
            run = pair_run("mini-bert", learning_rate=1e-4)
            run.encoder.to(DEVICE)
            run.train()
        assert torch.is_autocast_enabled(DEVICE)
    torch.testing.assert_close(torch.rand(4, device=DEVICE), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_student_learns_on_a_gpu_what_it_learns_on_a_processor(kind, tmp_path):
    found = []
    for device, how in (("cpu", "fp32"), (DEVICE, kind)):
        settings = DistillSettings(batch_size=16, learning_rate=1e-3, held_out=60, precision=how, epochs=2)
        full = truncate(load_encoder("mini-bert", device=device, max_length=32), 4)
        result = distill(full, SENTENCES, out=tmp_path / device, budget=Budget(blocks="2,4"), settings=settings)
        assert result.student.score > result.student.untrained
        found.append(result.student.agreement.correlation)
    assert found[1] == pytest.approx(found[0], abs=1.0)


COMMANDS = (
    "analyze mini-bert --texts texts.txt",
    "finetune mini-bert --data data --layer 2,4 --epochs 1 --seeds 1 --precision bf16 --workspace finetune",
    "distill mini-bert --texts texts.txt --blocks 3 --workspace distill",
    "contrast mini-bert --data data --objective dropout --dropout 0.1 --layer 4 --epochs 1 --workspace contrast",
    "freeze mini-gpt2 --data data --layer 2 --epochs 1 --seeds 1 --workspace freeze",
    "combine mini-bert --data data --workspace combine",
    "evaluate mini-bert --data data",
    "encode texts.txt --model mini-bert",
)


def printed(capsys, *arguments):
    """What a command prints as JSON, once it has ended without a problem."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    return json.loads(out)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_on_a_gpu(command, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    assert printed(capsys, *command.split(), "--device", DEVICE, "--json")


def test_a_bench_measures_what_is_here(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    options = ("--data", "data", "--workspace", "bench", "--json")
    printed(capsys, "finetune", "mini-bert", "--layer", 2, "--epochs", 1, "--seeds", 1, *options)
    report = printed(capsys, "bench", "--quick", "--device", DEVICE, *options)
    rows = {row["backend"] for row in report["timings"]}
    assert "torch-fp32" in rows
    assert ("onnx-fp32" in rows) == graph_runs()
