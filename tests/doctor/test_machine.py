"""The real machine: what starts here, what is installed, and two wheels at once."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import onnxruntime
import pytest
import torch

from truncate_kit.doctor.diagnosis import diagnose
from truncate_kit.doctor.facts import Request
from truncate_kit.doctor.providers import start_provider
from truncate_kit.hardware import core_quota
from truncate_kit_cli.app import main

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")


@pytest.fixture
def doctor(capsys):
    """A function that runs the program here: exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["doctor", *arguments])
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


def test_this_machine_runs_what_the_tests_need():
    found = diagnose(Request(device="cpu", extras=("cpu",)))
    assert found.able, found.findings
    assert found.facts.provider("CPUExecutionProvider").starts
    versions = {row.name: row.installed for row in found.facts.requirements}
    assert versions["torch"] == version("torch")
    assert versions["transformers"] == version("transformers")
    wanted = {row.name for row in found.facts.requirements if row.extra == "cpu"}
    assert {"onnxruntime", "onnx", "onnxscript", "transformers"} == wanted
    assert found.facts.wheels == {"onnxruntime": onnxruntime.__version__}


def test_what_cannot_start_says_why():
    row = start_provider("CUDAExecutionProvider")
    assert row.starts == ("CUDAExecutionProvider" in onnxruntime.get_available_providers())
    assert row.starts or row.reason


@NO_CUDA
def test_cuda_that_is_not_there_is_exit_code_1(doctor):
    code, out, _ = doctor("--device", "cuda", "--extra", "gpu", "--json")
    diagnosis = json.loads(out)
    assert code == 1
    said = " ".join(row["text"] for row in diagnosis["findings"] if row["severity"] == "problem")
    assert "onnxruntime-gpu" in said
    assert "NVIDIA driver" in said or "torch" in said


def test_two_wheels_at_once_are_seen(doctor, monkeypatch, tmp_path):
    record = tmp_path / "onnxruntime_gpu-1.26.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.26.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = doctor()
    assert code == 0
    assert "Everything that was asked for can run." in out
    said = " ".join(out.split())
    assert f"Warning: onnxruntime {onnxruntime.__version__} and onnxruntime-gpu 1.26.0 are installed at once" in said
    assert doctor("--extra", "gpu")[0] == 1


def test_tables_for_the_eye_and_json_for_programs(doctor):
    code = "from truncate_kit_cli.app import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # as users start it
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("CPUExecutionProvider", "torch threads", "VNNI", version("torch")))
    code, out, err = doctor("--runtime", "torch", "--extra", "suites", "--extra", "tensorboard", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["facts"]["processor"]["cores"] == os.cpu_count()


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("torch", 'raise RuntimeError("no kernels.\\nMore of it")', "torch cannot be imported: no kernels."),
        ("torch", "", "torch cannot be imported: a part of it is missing, such as `__version__`."),
        ("onnxruntime", 'raise RuntimeError("numpy 1")', "does not start: onnxruntime cannot be imported: numpy 1."),
    ],
)
def test_a_broken_package_is_named_with_its_reason(package, code, said, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", "from truncate_kit_cli.app import main; main(['doctor', '--json'])"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places})
    assert (done.returncode, done.stderr) == (1, "")
    problems = [row["text"] for row in json.loads(done.stdout)["findings"] if row["severity"] == "problem"]
    assert len(problems) == 1
    assert said in problems[0]


def test_wishes_that_nobody_knows(doctor):
    code, out, err = doctor("--extra", "quick")
    assert (code, out) == (1, "")
    assert err.startswith("Error: --extra 'quick' is not known here.")
    assert "energy" in err


def test_a_quota_is_read_as_the_kernel_writes_it(tmp_path: Path):
    file = tmp_path / "cpu.max"
    for text, cores in (("max 100000\n", None), ("150000 100000\n", 1.5), ("nonsense\n", None)):
        file.write_text(text)
        assert core_quota(file) == cores
    assert core_quota(tmp_path / "none") is None
