"""What does not fit on a machine, on machines that are made up and on this one."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import onnxruntime
import pytest
import torch

from tests.support.commands import ended
from truncate_kit import doctor
from truncate_kit.core import hardware
from truncate_kit.core.errors import UsageError
from truncate_kit.doctor import CPU, CUDA, Diagnosis, diagnose, known_extras

ROOT = Path(__file__).resolve().parents[1]
GPU = {"device": "cuda", "extras": ("gpu",)}
FP16 = {"precision": "fp16"}


@pytest.fixture
def verdicts(monkeypatch):
    """A function that diagnoses a machine made up from its arguments, and returns the bad verdicts by name."""
    real = doctor.installed_version
    monkeypatch.setattr(torch, "get_num_threads", hardware.usable_cores)
    monkeypatch.setenv(hardware.INSTRUCTIONS, "avx512_bf16 avx512_vnni")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def look(asked, *, gpu=True, versions=(), reasons=(), on_gpu=("H100", "")):
        wheels = {"onnxruntime": None if gpu else "1.31.1", "onnxruntime-gpu": "1.31.1" if gpu else None}
        known = wheels | dict(versions)
        monkeypatch.setattr(doctor, "installed_version", lambda name: known.get(name, real(name)))
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU, CUDA][: 1 + gpu])
        monkeypatch.setattr(doctor, "start_provider", lambda name: dict(reasons).get(name, ""))
        monkeypatch.setattr(doctor, "torch_on_gpu", lambda: on_gpu if gpu else ("", "no CUDA"))
        wrong = [row for row in diagnose(**asked).checks if row.verdict in ("warning", "problem")]
        assert all(row.hint for row in wrong)
        return {row.name: row.verdict for row in wrong}

    return look


@pytest.mark.parametrize(
    ("machine", "asked", "found"),
    [
        ({}, GPU, {}),
        ({}, {"device": "cuda", "precision": "int8"}, {"graph in int8": "problem"}),
        ({"versions": {"ray": "2.1"}}, {"extras": ("ray",)}, {"ray": "problem"}),
        ({"versions": {"onnxruntime": "1.30.0"}}, GPU, {"ONNX Runtime": "warning"}),
        ({"versions": {"onnxruntime-gpu": None}}, {"device": "cuda"}, {"onnxruntime-gpu": "problem"}),
        ({"versions": {"onnxruntime-gpu": "1.27.0"}}, FP16, {"onnxruntime-gpu": "problem"}),
        ({"reasons": {CUDA: "libcudart.so.13"}}, GPU, {CUDA: "problem"}),
        ({"reasons": {CUDA: "libcudart.so.13"}}, {}, {CUDA: "warning"}),
        ({"on_gpu": ("", "built without")}, GPU, {"torch on CUDA": "problem"}),
        ({"gpu": False}, {}, {}),
        ({"gpu": False}, {"device": "cpu", "extras": ("cpu",), "precision": "bf16"}, {}),
        ({"gpu": False}, {"precision": "int8"}, {}),
        ({"gpu": False}, FP16 | {"device": "cpu"}, {"graph in fp16": "warning"}),
        ({"gpu": False}, FP16, {"onnxruntime-gpu": "problem", "torch on CUDA": "problem"}),
        ({"gpu": False, "versions": {"onnxruntime": None}}, {"device": "cpu"}, {"onnxruntime": "problem"}),
        ({"gpu": False, "versions": {"onnxruntime": "1.20.0"}}, {"device": "cpu"}, {"onnxruntime": "problem"}),
        ({"gpu": False, "versions": {"onnxruntime": "1.20.0"}}, {"device": "cpu", "runtime": "torch"}, {}),
    ],
)
def test_what_does_not_fit(verdicts, machine, asked, found):
    assert verdicts(asked, **machine) == found


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (r"\033[1;31mlib.cc:9 Failed with error: libcudart.so.13: no file\033[m\nmore", "libcudart.so.13: no file"),
        (r"Traceback\nValueError: no provider.\n", "ValueError: no provider"),
        ("", "its test process ended with exit code 3"),
    ],
)
def test_the_reason_of_a_provider_that_does_not_start(printed, reason, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{printed}' >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert doctor.start_provider(CUDA) == reason


def test_instructions_and_threads(verdicts, monkeypatch):
    monkeypatch.setenv(hardware.INSTRUCTIONS, "avx2")
    assert verdicts({}, gpu=False) == {"bf16 instructions": "warning", "VNNI": "warning"}
    assert verdicts({"precision": "bf16"}, gpu=False)["bf16 instructions"] == "problem"
    monkeypatch.setattr(torch, "get_num_threads", lambda: hardware.usable_cores() + 1)
    assert verdicts({}, gpu=False)["torch threads"] == "warning"


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"extras": ("quick",)}, FP16 | {"runtime": "torch"}])
def test_what_cannot_be_asked_for(wrong):
    with pytest.raises(UsageError):
        diagnose(**wrong)


def test_every_extra_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(known_extras())


def test_the_command_here(capsys):
    code, out, _ = ended(capsys, "doctor", "--device", "cpu", "--extra", "cpu", "--json")
    found = Diagnosis.from_dict(json.loads(out))
    assert (code, found.able) == (0, True)
    code, out, _ = ended(capsys, "doctor")
    assert code == 0
    assert all(word in out for word in (CPU, "torch threads", "VNNI"))
    code = ended(capsys, "doctor", "--device", "cuda", "--extra", "gpu")[0]
    assert code == (0 if torch.cuda.is_available() else 1)


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("torch", 'raise RuntimeError("no kernels.\\nMore of it")', "cannot be used: no kernels"),
        ("torch", "", "cannot be used: module 'torch' has no attribute"),
        ("onnxruntime", 'raise RuntimeError("numpy 1")', "onnxruntime cannot be imported: numpy 1"),
    ],
)
def test_a_broken_package_is_named_with_its_reason(package, code, said, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", "from truncate_kit_cli.app import main; main(['doctor', '--json'])"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places})
    assert (done.returncode, done.stderr) == (1, "")
    (problem,) = (row for row in json.loads(done.stdout)["checks"] if row["verdict"] == "problem")
    assert said in problem["found"]
