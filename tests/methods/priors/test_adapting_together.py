"""Masked words in two processes: what one process with the same batches does."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tests.support.adapting import TEXTS, gradients_and_adaptation
from tests.support.distributed import assert_same, free_port, in_two_processes, tiny_without_dropout
from tests.support.files import study_file
from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import read_records
from truncate_kit.methods.priors import AdaptationResult
from truncate_kit.training.loop import ALONE
from truncate_kit_cli.train import check_shared

_PROGRAM = """
import os
from pathlib import Path
from safetensors.torch import save_file
from tests.support.adapting import gradients_and_adaptation
from truncate_kit.training.loop import joined
from truncate_kit_cli.app import main
out = Path({out!r})
with joined() as (group, device):
    found, losses = gradients_and_adaptation({folder!r}, out / "adapted", group)
    save_file(found, out / f"{{group.rank}}.safetensors")
    assert group.size == 2 and group.collect(losses) == [losses, losses]
    again, _ = gradients_and_adaptation({folder!r}, out / "adapted", group)  # read from the folder by both
    assert all((again[name] == found[name]).all() for name in found)
for arguments, port in zip({commands}, {ports}):
    os.environ["MASTER_PORT"] = str(port)
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.fixture(scope="module")
def together(tiny_folder, tmp_path_factory):
    """A folder in which two processes adapted a model, and ran `finetune` and `study`; what each process printed."""
    home = tmp_path_factory.mktemp("together")
    folder = tiny_without_dropout(home / "model")
    (home / "raw.txt").write_text("\n".join(TEXTS[:60]) + "\n")
    study = study_file(tiny_folder("bert"), home, epochs=1, seeds=1, layers="1")
    study.write_text(f'{study.read_text()}\n[[priors]]\ntexts = "raw.txt"\nepochs = 1\n')
    finetune = ["finetune", tiny_folder("bert"), "--layer", "1", "--seeds", "1", "--epochs", "1"]
    finetune += ["--data", home / "pairs.csv", "--prior-texts", home / "raw.txt", "--prior-epochs", "1"]
    commands = [
        [str(part) for part in (*command, "--workspace", home / str(command[0]), "--json")]
        for command in (finetune, ["study", study])
    ]
    ports = [free_port(), free_port()]
    program = _PROGRAM.format(out=str(home), folder=str(folder), commands=commands, ports=ports)
    printed = []
    for code, out, errors in in_two_processes(program):
        assert code == 0, errors
        printed.append(out)
    return home, printed


def kept_adaptation(store) -> AdaptationResult:
    """The only one."""
    (found,) = (row for row in read_records(store / "trials.jsonl")[0] if row["kind"] == "AdaptationResult")
    return AdaptationResult.from_dict(found)


def test_two_processes_adapt_as_one(together, tmp_path):
    home, _ = together
    alone, losses = gradients_and_adaptation(home / "model", tmp_path, ALONE)
    first, second = (load_file(home / f"{rank}.safetensors") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    wanted = {name: value for name, value in alone.items() if name.startswith("gradient")}
    assert_same({name: first[name] for name in wanted}, wanted, 1e-5)
    result = kept_adaptation(home / "adapted")
    assert result.processes == 2
    assert result.losses == pytest.approx(losses, abs=1e-4)
    # Adam turns a rounding difference of a gradient near 0 into a step, so the outcome is close, not equal.
    moved = float((alone["after"] - alone["before"]).abs().max())
    torch.testing.assert_close(first["after"], alone["after"], atol=0.05 * moved, rtol=0)
    assert not list(home.glob("adapted/*/*.checkpoint"))


def test_commands_share_the_adaptation_and_one_goes_on(together):
    home, (first, second) = together
    assert (first.count('"format": '), second) == (2, "")
    for command in ("finetune", "study"):
        assert kept_adaptation(next((home / command).glob("**/adapted"))).processes == 2


def test_processes_without_anything_to_share_are_refused():
    with pytest.raises(UsageError, match="torchrun started 2 processes"):
        check_shared(SimpleNamespace(size=2), has_texts=False)
