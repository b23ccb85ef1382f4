"""Masked words in two processes: what one process with the same batches does."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.priors.test_masked_words import TEXTS
from tests.training.test_contrastive_training import ROOT, assert_same, free_port, gradients, started, without_dropout
from truncate_kit.encoders import load_encoder
from truncate_kit.priors import AdaptationResult, AdaptationSettings, MaskedTexts, adapted, load_masked_head
from truncate_kit.training.distributed import ALONE

SETTINGS = AdaptationSettings(epochs=2, batch_size=96, learning_rate=1e-3)  # parts of 32: two for the one, one less

_WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from safetensors.torch import save_file
from tests.priors.test_adapting_together import both
from truncate_kit.training.distributed import joined
out = Path({out!r})
with joined() as (group, device):
    found, losses = both({folder!r}, out / "adapted", group)
    save_file(found, out / f"{{group.rank}}.safetensors")
    assert group.size == 2 and group.collect(losses) == [losses, losses]
    again, _ = both({folder!r}, out / "adapted", group)  # read from the folder by both
    assert all((again[name] == found[name]).all() for name in found)
"""


def both(folder, out, group) -> tuple[dict[str, torch.Tensor], tuple[float, ...]]:
    """The gradients of one batch of 77 texts in parts of 32, and vectors before and after an adaptation."""
    encoder = load_encoder(folder)
    found = {"before": encoder.encode(TEXTS[:5])}
    torch.manual_seed(0)
    head = load_masked_head(encoder)
    examples = MaskedTexts(encoder, encoder.token_ids(TEXTS), head, part=32, group=group)
    torch.manual_seed(7 + group.rank)  # the leading process draws what is hidden, whatever the others would draw
    examples.loss(encoder, range(77)).backward()
    group.sum_gradients(torch.nn.ModuleList([encoder, head]))
    found |= {f"gradient {name}": value for name, value in gradients(encoder).items()}
    model, result = adapted(load_encoder(folder), TEXTS, out, SETTINGS, group=group)
    return found | {"after": model.encode(TEXTS[:5])}, result.losses


def test_two_processes_adapt_as_one(tmp_path):
    folder = without_dropout(tmp_path / "model")
    text = _WORKER.format(root=str(ROOT), out=str(tmp_path), folder=str(folder))
    port = free_port()
    workers = [started([sys.executable, "-c", text], rank, port) for rank in range(2)]
    for worker in workers:
        _, errors = worker.communicate(timeout=600)
        assert worker.returncode == 0, errors
    alone, losses = both(folder, tmp_path / "alone", ALONE)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    wanted = {name: value for name, value in alone.items() if name.startswith("gradient")}
    assert_same({name: first[name] for name in wanted}, wanted, 1e-5)
    result = AdaptationResult.read(next((tmp_path / "adapted").glob("*/adaptation.json")))
    assert result.processes == 2
    assert result.losses == pytest.approx(losses, abs=1e-4)
    # Adam turns a rounding difference of a gradient near 0 into a step, so the outcome is close, not equal.
    moved = float((alone["after"] - alone["before"]).abs().max())
    torch.testing.assert_close(first["after"], alone["after"], atol=0.05 * moved, rtol=0)
    assert not list(tmp_path.glob("adapted/*/*.checkpoint"))


def test_commands_share_the_adaptation_and_one_goes_on(tiny_folder, tmp_path):
    (tmp_path / "raw.txt").write_text("\n".join(TEXTS[:60]) + "\n")
    lines = [f"the {a},a {b},{(3 * i + j) % 6}" for i, a in enumerate("abcdefg") for j, b in enumerate("abcdefg")]
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n")
    (tmp_path / "study.toml").write_text(
        f"""
        seeds = 1
        layers = "1"
        training = {{ epochs = 1, learning_rate = 1e-3 }}
        models = [{{ model = "{tiny_folder("bert")}", name = "bert" }}]
        priors = [{{ texts = "raw.txt", epochs = 1 }}]
        tasks = [{{ data = "pairs.csv", name = "pairs" }}]
        """
    )
    finetune = ["finetune", tiny_folder("bert"), "--layer", "1", "--seeds", "1", "--epochs", "1"]
    finetune += ["--data", tmp_path / "pairs.csv", "--prior-texts", tmp_path / "raw.txt", "--prior-epochs", "1"]
    for command in (finetune, ["study", tmp_path / "study.toml"]):
        out = tmp_path / str(command[0])
        arguments = [str(part) for part in (*command, "--out", out, "--json")]
        code = f"from truncate_kit_cli.app import main; main({arguments!r})"
        port = free_port()
        workers = [started([sys.executable, "-c", code], rank, port) for rank in range(2)]
        printed = [worker.communicate(timeout=600) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], printed
        assert json.loads(printed[0][0])
        assert printed[1][0] == ""
        found = AdaptationResult.read(next((out / "adapted").glob("*/adaptation.json")))
        assert found.processes == 2


def test_processes_without_anything_to_share_are_refused(tiny_folder, tmp_path):
    arguments = ["finetune", str(tiny_folder("bert")), "--layer", "1", "--out", str(tmp_path / "out")]
    code = f"from truncate_kit_cli.app import main; main({arguments!r})"
    port = free_port()
    workers = [started([sys.executable, "-c", code], rank, port) for rank in range(2)]
    for worker in workers:
        _, errors = worker.communicate(timeout=600)
        assert worker.returncode == 1
        assert "nothing to adapt to that these 2 processes could share" in errors
        assert "Traceback" not in errors
