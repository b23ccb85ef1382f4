"""Masked words in two processes: what one process with the same batches does."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tests.support.adapting import TEXTS, gradients_and_adaptation
from tests.support.distributed import assert_same, free_port, in_two_processes, tiny_without_dropout
from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import read_records
from truncate_kit.methods.priors import AdaptationResult
from truncate_kit.training.loop import ALONE
from truncate_kit_cli.train import check_shared

_WORKER = """
from pathlib import Path
from safetensors.torch import save_file
from tests.support.adapting import gradients_and_adaptation
from truncate_kit.training.loop import joined
out = Path({out!r})
with joined() as (group, device):
    found, losses = gradients_and_adaptation({folder!r}, out / "adapted", group)
    save_file(found, out / f"{{group.rank}}.safetensors")
    assert group.size == 2 and group.collect(losses) == [losses, losses]
    again, _ = gradients_and_adaptation({folder!r}, out / "adapted", group)  # read from the folder by both
    assert all((again[name] == found[name]).all() for name in found)
"""


_COMMANDS = """
import os
from truncate_kit_cli.app import main
for arguments, port in zip({commands}, {ports}):
    os.environ["MASTER_PORT"] = str(port)
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
"""


def kept_adaptation(store) -> AdaptationResult:
    """The only one."""
    (found,) = (row for row in read_records(store / "trials.jsonl")[0] if row["kind"] == "AdaptationResult")
    return AdaptationResult.from_dict(found)


def test_two_processes_adapt_as_one(tmp_path):
    folder = tiny_without_dropout(tmp_path / "model")
    for code, _, errors in in_two_processes(_WORKER.format(out=str(tmp_path), folder=str(folder))):
        assert code == 0, errors
    alone, losses = gradients_and_adaptation(folder, tmp_path / "alone", ALONE)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    wanted = {name: value for name, value in alone.items() if name.startswith("gradient")}
    assert_same({name: first[name] for name in wanted}, wanted, 1e-5)
    result = kept_adaptation(tmp_path / "adapted")
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
    commands = [
        [str(part) for part in (*command, "--workspace", tmp_path / str(command[0]), "--json")]
        for command in (finetune, ["study", tmp_path / "study.toml"])
    ]
    (first, out_of_first, said), (second, out_of_second, _) = in_two_processes(
        _COMMANDS.format(commands=commands, ports=[free_port(), free_port()])
    )
    assert (first, second) == (0, 0), said
    assert out_of_first.count('"format": ') == 2
    assert out_of_second == ""
    for command in ("finetune", "study"):
        assert kept_adaptation(next((tmp_path / command).glob("**/adapted"))).processes == 2


def test_processes_without_anything_to_share_are_refused():
    with pytest.raises(UsageError, match="These 2 processes have no adaptation to share"):
        check_shared(SimpleNamespace(size=2), has_texts=False)
