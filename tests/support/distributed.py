"""The same program in two processes that train together, and what is compared with one process."""

import socket
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.support.families import make_tiny
from tests.support.files import edit_json
from tests.support.processes import Program


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def in_two_processes(program: str, *arguments: object) -> list[tuple[int, str, str]]:
    """Run a Python program as torchrun would start it on two devices: exit code, stdout and stderr by rank."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = [
        Program(program, *arguments, environment=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    printed = [running.communicate() for running in programs]
    return [(running.returncode, out, err) for running, (out, err) in zip(programs, printed, strict=True)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Equal within a share of the largest of all values."""
    assert found.keys() == expected.keys()
    largest = max(float(value.detach().abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=tolerance * largest, rtol=0, msg=name)


def tiny_without_dropout(folder: Path) -> Path:
    """A tiny BERT whose configuration draws nothing in training."""
    edit_json(make_tiny("bert", folder) / "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return folder
