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

from truncate_kit import doctor
from truncate_kit.core import hardware
from truncate_kit.core.errors import UsageError
from truncate_kit.doctor import CPU, CUDA, Diagnosis, Request, diagnose, known_extras
from truncate_kit_cli.app import main

ROOT = Path(__file__).resolve().parents[1]
GPU = Request(device="cuda", extras=("gpu",))


@pytest.fixture
def machine(monkeypatch):
    """A function that makes a machine up, on which all fits but for what is given: it returns verdicts by name."""
    real = doctor.installed_version

    def make(
        *, versions=(), providers=(CPU, CUDA), reasons=(), driver="13.0", on_gpu=("13.0", "H100", ""), wheel="13.0"
    ):
        known = {"onnxruntime": None, "onnxruntime-gpu": "1.31.1"} | dict(versions)
        monkeypatch.setattr(doctor, "installed_version", lambda name: known.get(name, real(name)))
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(providers))
        monkeypatch.setattr(doctor, "start_provider", lambda name: dict(reasons).get(name, ""))
        monkeypatch.setattr(doctor, "driver_cuda", lambda: driver)
        monkeypatch.setattr(doctor, "torch_on_gpu", lambda: on_gpu)
        monkeypatch.setattr(doctor, "onnxruntime_cuda", lambda: wheel)
        monkeypatch.setattr(torch, "get_num_threads", hardware.usable_cores)
        monkeypatch.setenv(hardware.INSTRUCTIONS, "avx512_bf16 avx512_vnni")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        return lambda request=None: {
            row.name: row for row in diagnose(request).checks if row.verdict in ("warning", "problem")
        }

    return make


def without_gpu(machine, **changes):
    plain = {"onnxruntime": "1.31.1", "onnxruntime-gpu": None} | changes.pop("versions", {})
    return machine(versions=plain, providers=(CPU,), driver=None, on_gpu=(None, "", "no CUDA"), wheel=None, **changes)


@pytest.mark.parametrize(
    "asked", [Request(), Request(device="cpu", extras=("cpu",), precision="bf16"), Request(precision="int8")]
)
def test_a_machine_without_a_gpu_that_fits(machine, asked):
    assert without_gpu(machine)(asked) == {}


@pytest.mark.parametrize(
    ("changes", "asked", "found"),
    [
        ({}, GPU, {}),
        ({}, Request(device="cuda", precision="fp16"), {}),
        ({"versions": {"ray": "2.1"}}, Request(extras=("ray",)), {"ray": "problem"}),
        ({"versions": {"scipy": "1.0"}}, Request(), {"scipy": "problem"}),
        ({"versions": {"onnxruntime": "1.30.0"}}, GPU, {"ONNX Runtime": "warning"}),
        ({"versions": {"onnxruntime-gpu": None}}, Request(device="cuda"), {"onnxruntime-gpu": "problem"}),
        ({"versions": {"onnxruntime-gpu": "1.27.0"}}, Request(precision="fp16"), {"onnxruntime-gpu": "problem"}),
        ({"reasons": {CUDA: "libcudart.so.13"}}, GPU, {CUDA: "problem"}),
        ({"reasons": {CUDA: "libcudart.so.13"}}, Request(), {CUDA: "warning"}),
        ({"driver": None}, GPU, {"CUDA driver": "problem"}),
        ({"on_gpu": (None, "", "built without")}, GPU, {"torch on CUDA": "problem"}),
        ({"on_gpu": ("12.8", "H100", "")}, GPU, {"CUDA of ONNX Runtime": "warning"}),
        ({"driver": "12.8"}, GPU, {"CUDA of ONNX Runtime": "warning"}),
        ({}, Request(device="cuda", precision="int8"), {"graph in int8": "problem"}),
    ],
)
def test_what_does_not_fit_where_there_is_a_gpu(machine, changes, asked, found):
    rows = machine(**changes)(asked)
    assert {name: row.verdict for name, row in rows.items()} == found
    assert all(row.hint for row in rows.values())


@pytest.mark.parametrize("version", [None, "1.20.0"])
def test_no_onnxruntime_or_an_old_one_matters_where_graphs_have_to_run(machine, version):
    look = without_gpu(machine, versions={"onnxruntime": version})
    assert {name: row.verdict for name, row in look(Request(device="cpu")).items()} == {"onnxruntime": "problem"}
    assert look(Request(device="cpu", runtime="torch")) == look() == {}


def test_fp16_on_the_cpu_is_slow_and_asks_for_a_gpu_elsewhere(machine):
    look = without_gpu(machine)
    assert look(Request(device="cpu", precision="fp16"))["graph in fp16"].verdict == "warning"
    assert look(Request(precision="fp16"))["CUDA driver"].verdict == "problem"


def test_instructions_and_threads(machine, monkeypatch):
    look = without_gpu(machine)
    monkeypatch.setenv(hardware.INSTRUCTIONS, "avx2")
    assert {name: row.verdict for name, row in look().items()} == {"bf16 instructions": "warning", "VNNI": "warning"}
    assert look(Request(precision="bf16"))["bf16 instructions"].verdict == "problem"
    monkeypatch.setattr(hardware, "usable_cores", lambda: 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert "`threads=1`" in look()["torch threads"].hint


@pytest.mark.parametrize(
    "wrong", [{"device": "tpu"}, {"extras": ("quick",)}, {"precision": "fp16", "runtime": "torch"}]
)
def test_what_cannot_be_asked_for(wrong):
    with pytest.raises(UsageError):
        Request(**wrong)


def test_every_extra_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(known_extras())


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code or 0, capsys.readouterr().out


def test_the_command_here(capsys):
    code, out = run(capsys, "--device", "cpu", "--extra", "cpu", "--json")
    found = Diagnosis.from_dict(json.loads(out))
    assert (code, found.able) == (0, True)
    code, out = run(capsys)
    assert code == 0
    assert all(word in out for word in (CPU, "torch threads", "VNNI"))
    assert run(capsys, "--device", "cuda", "--extra", "gpu")[0] == (0 if torch.cuda.is_available() else 1)


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("torch", 'raise RuntimeError("no kernels.\\nMore of it")', "cannot be imported: no kernels"),
        ("torch", "", "a part of it is missing, such as `__version__`"),
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
