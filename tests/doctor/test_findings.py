"""What follows from facts: each misfit gives its finding, with pins that name the versions."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from truncate_kit.doctor.facts import CudaVersions, Diagnosis, Facts, Processor, Provider, Request, Requirement
from truncate_kit.doctor.findings import PINS, find_problems
from truncate_kit.doctor.packages import requirements
from truncate_kit.doctor.providers import CPU, CUDA, TORCH_CUDA, cudnn_version
from truncate_kit.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = Facts(
    python="3.11.7",
    torch_problem=None,
    requirements=(Requirement(name="torch", wanted=">=2.11", installed="2.13.0", fits=True, extra=None),),
    wheels={"onnxruntime": "1.31.1"},
    providers=(Provider(name=CPU, starts=True),),
    cuda=CudaVersions(),
    processor=Processor(
        name="A processor",
        cores=8,
        usable=8,
        quota=None,
        torch_threads=8,
        omp_num_threads=None,
        bf16="avx512_bf16",
        int8="avx512_vnni",
    ),
)
ON_GPU = replace(
    ON_CPU,
    wheels={"onnxruntime-gpu": "1.31.1"},
    providers=(*(Provider(name=name, starts=True) for name in (CPU, CUDA, TORCH_CUDA)),),
    cuda=CudaVersions(driver="13.0", torch="13.0", cudnn="9.20", onnxruntime="13.0"),
)
GPU = Request(device="cuda", extras=("gpu",))


def findings(facts, asked=None, severity=None):
    return [row for row in find_problems(facts, asked or Request()) if severity in (None, row.severity)]


def only(facts, asked=None):
    (finding,) = findings(facts, asked)
    return finding


def without(facts, name, reason="no such thing"):
    rows = (row if row.name != name else Provider(name=name, starts=False, reason=reason) for row in facts.providers)
    return replace(facts, providers=tuple(rows))


@pytest.mark.parametrize(
    "asked",
    [
        Request(),
        Request(device="cpu", extras=("cpu",), precision="bf16"),
        Request(precision="int8"),
        Request(device="cpu", runtime="onnx"),
    ],
)
def test_a_machine_that_fits_has_no_findings(asked):
    assert findings(ON_CPU, asked) == []


@pytest.mark.parametrize("asked", [GPU, Request(device="cuda"), Request(device="cuda", precision="fp16")])
def test_a_gpu_that_fits_has_no_findings(asked):
    assert findings(ON_GPU, asked) == []


def test_pins_are_the_versions_that_the_tests_run_with():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert PINS[13].runtime == f"onnxruntime-gpu[cuda,cudnn]=={pinned['onnxruntime']}"
    assert PINS[13].torch == f"torch=={pinned['torch']}"


def test_a_missing_package_matters_only_where_it_was_asked_for():
    missing = Requirement(name="ray", wanted=">=2.40", installed=None, fits=False, extra="ray")
    facts = replace(ON_CPU, requirements=(*ON_CPU.requirements, missing))
    assert findings(facts) == []
    finding = only(facts, Request(extras=("ray",)))
    assert (finding.severity, finding.remedy) == ("problem", "pip install 'ray>=2.40'")
    old = replace(ON_CPU, requirements=(replace(missing, extra=None, installed="2.1"),))
    assert "ray 2.1 is installed; truncate-kit needs ray>=2.40" in only(old).text


def test_both_wheels_are_a_warning_and_a_problem_where_cuda_was_asked_for_and_does_not_start():
    both = {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.31.1"}
    assert only(replace(ON_CPU, wheels=both)).severity == "warning"
    assert only(replace(ON_GPU, wheels=both), GPU).severity == "warning"
    shadowed = replace(ON_GPU, wheels=both, providers=tuple(row for row in ON_GPU.providers if row.name != CUDA))
    first, second = findings(shadowed, GPU)
    assert (first.severity, second.severity) == ("problem", "problem")
    assert "onnxruntime 1.30.0 and onnxruntime-gpu 1.31.1" in first.text
    assert first.remedy == (
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"
    )


def test_no_driver():
    facts = replace(ON_GPU, cuda=replace(ON_GPU.cuda, driver=None))
    assert findings(facts) == []  # nobody asked for a GPU
    finding = only(facts, GPU)
    assert finding.severity == "problem"
    assert "No NVIDIA driver" in finding.text
    assert "driver 580" in finding.remedy


def test_torch_without_cuda():
    facts = replace(ON_GPU, cuda=replace(ON_GPU.cuda, torch=None, cudnn=None))
    assert only(facts).severity == "warning"
    finding = only(facts, GPU)
    assert "torch 2.13.0 is built without CUDA" in finding.text
    assert finding.remedy == "pip install --force-reinstall torch==2.13.0"


def test_an_old_driver_gets_the_last_wheel_for_its_cuda():
    facts = replace(ON_GPU, cuda=replace(ON_GPU.cuda, driver="12.8", torch="12.8"))
    found = findings(without(facts, CUDA, "CUDA driver version is insufficient"), GPU)
    assert {row.severity for row in found} == {"problem"}
    assert "CUDA driver version is insufficient" in found[0].text
    assert "onnxruntime-gpu[cuda,cudnn]==1.26.0" in found[0].remedy
    assert "torch is built for CUDA 12.8" in found[1].text
    assert "the driver is made for CUDA 12.8" in found[2].text
    assert "float32 only" in found[2].remedy


def test_torch_for_another_cuda_is_a_warning_while_both_start():
    facts = replace(ON_GPU, cuda=replace(ON_GPU.cuda, torch="12.8"))
    finding = only(facts, GPU)
    assert finding.severity == "warning"
    assert "built for CUDA 13, and torch is built for CUDA 12.8" in finding.text
    assert "torch==2.13.0" in finding.remedy


@pytest.mark.parametrize(("version", "cuda"), [("1.19.2", 12), ("1.26.0", 12), ("1.27.0", 13), ("1.31.1", 13)])
def test_a_wheel_that_does_not_say_its_cuda_is_known_by_its_version(version, cuda):
    quiet = replace(
        ON_GPU,
        wheels={"onnxruntime-gpu": version},
        cuda=replace(ON_GPU.cuda, torch="11.8", driver="13.0", onnxruntime=None),
    )
    assert f"built for CUDA {cuda}, and torch is built for CUDA 11.8" in only(quiet, GPU).text


def test_another_cudnn():
    finding = only(replace(ON_GPU, cuda=replace(ON_GPU.cuda, cudnn="8.9")), GPU)
    assert "cuDNN 8.9" in finding.text
    assert finding.severity == "problem"


@pytest.mark.parametrize(("number", "version"), [(8907, "8.9"), (90100, "9.1"), (92000, "9.20")])
def test_cudnn_numbers(number, version):
    assert cudnn_version(number) == version


def test_torch_that_does_not_start_on_the_gpu():
    finding = only(without(ON_GPU, TORCH_CUDA, "no kernel image"), GPU)
    assert "no kernel image" in finding.text
    assert finding.severity == "problem"


@pytest.mark.parametrize(
    ("asked", "severity", "torch_alone"),
    [
        (Request(device="cuda"), "problem", True),
        (Request(device="cuda", runtime="onnx"), "problem", False),
        (Request(precision="fp16"), "problem", False),
        (Request(device="cuda", runtime="torch"), "warning", False),
        (Request(), "warning", False),
    ],
)
@pytest.mark.parametrize("wheels", [{"onnxruntime": "1.31.1"}, {}])
def test_a_gpu_without_its_wheel_runs_torch_and_no_graph(asked, severity, torch_alone, wheels):
    rows = [row for row in ON_GPU.providers if row.name == TORCH_CUDA or (row.name == CPU and wheels)]
    finding = only(replace(ON_GPU, wheels=wheels, providers=tuple(rows)), asked)
    assert (finding.severity, "graphs cannot run on CUDA" in finding.text) == (severity, True)
    uninstall = "pip uninstall -y onnxruntime && " if wheels else ""
    assert finding.remedy.startswith(f"{uninstall}pip install 'onnxruntime-gpu")
    assert ('`runtime="torch"`' in finding.remedy) == torch_alone


@pytest.mark.parametrize(
    ("asked", "severity"),
    [
        (Request(device="cpu"), "problem"),
        (Request(runtime="onnx"), "problem"),
        (Request(precision="int8"), "problem"),
        (Request(device="cpu", runtime="torch"), "warning"),
        (Request(), None),
    ],
)
def test_a_machine_without_onnxruntime_runs_torch_alone(asked, severity):
    found = findings(replace(ON_CPU, wheels={}, providers=()), asked)
    assert [row.severity for row in found] == ([severity] if severity else [])


def test_fp16_graphs_are_for_cuda_and_int8_graphs_for_the_cpu():
    slow = only(ON_CPU, Request(device="cpu", precision="fp16"))
    assert (slow.severity, "not made for cpu" in slow.text) == ("warning", True)
    assert any("No NVIDIA driver" in row.text for row in findings(ON_CPU, Request(precision="fp16"), "problem"))
    wrong = only(ON_GPU, Request(device="cuda", precision="int8"))
    assert (wrong.severity, "not made for cuda" in wrong.text) == ("problem", True)


def test_fp16_needs_a_wheel_that_does_not_overflow():
    fp16 = Request(device="cuda", precision="fp16")
    finding = only(replace(ON_GPU, wheels={"onnxruntime-gpu": "1.27.0"}), fp16)
    assert (finding.severity, "1.27.0 can overflow" in finding.text) == ("problem", True)
    assert PINS[13].runtime in finding.remedy
    old_driver = replace(ON_GPU.cuda, driver="12.8", torch="12.8", onnxruntime="12.8")
    finding = only(replace(ON_GPU, wheels={"onnxruntime-gpu": "1.26.0"}, cuda=old_driver), fp16)
    assert finding.remedy == 'Use `precision="fp32"`.'  # no wheel for CUDA 12 does


def test_a_preview_of_a_wheel_counts_as_the_version_it_leads_to():
    fp16 = Request(device="cuda", precision="fp16")
    assert findings(replace(ON_GPU, wheels={"onnxruntime-gpu": "1.28rc1"}), fp16) == []
    assert "1.27rc1 can overflow" in only(replace(ON_GPU, wheels={"onnxruntime-gpu": "1.27rc1"}), fp16).text


@pytest.mark.parametrize(
    ("asked", "severity"),
    [
        (Request(device="cpu"), "problem"),
        (Request(precision="int8"), "problem"),
        (Request(device="cpu", extras=("cpu",)), "problem"),
        (Request(device="cpu", runtime="torch"), None),
        (Request(), None),
    ],
)
def test_an_old_runtime_is_a_problem_where_graphs_have_to_run(asked, severity):
    old = Requirement(name="onnxruntime", wanted=">=1.28", installed="1.20.0", fits=False, extra="cpu")
    facts = replace(ON_CPU, requirements=(*ON_CPU.requirements, old), wheels={"onnxruntime": "1.20.0"})
    assert [row.severity for row in findings(facts, asked)] == ([severity] if severity else [])


def test_a_runtime_that_does_not_start_at_all():
    finding = only(without(ON_CPU, CPU, "undefined symbol"))
    assert (finding.severity, "undefined symbol" in finding.text) == ("problem", True)


def test_processor_features_matter_where_they_were_asked_for():
    plain = replace(ON_CPU, processor=replace(ON_CPU.processor, bf16=None, int8=None))
    assert {row.severity for row in findings(plain)} == {"warning"}
    assert ["bf16" in row.text for row in findings(plain, Request(precision="bf16"), "problem")] == [True]
    assert any("7 bits" in row.remedy for row in findings(plain, Request(precision="int8"), "warning"))


def test_threads_and_the_quota_of_a_container():
    crowded = replace(ON_CPU, processor=replace(ON_CPU.processor, usable=2, quota=2.0))
    assert only(crowded).remedy == "Use `threads=2`, or set OMP_NUM_THREADS=2."
    idle = replace(ON_CPU, processor=replace(ON_CPU.processor, torch_threads=1, omp_num_threads="1"))
    assert "because OMP_NUM_THREADS is 1" in only(idle).text


def test_a_torch_that_cannot_be_imported_is_the_only_thing_said_about_it():
    facts = replace(ON_GPU, torch_problem="libcudart.so.13: cannot open shared object file")
    assert "libcudart.so.13" in only(facts, GPU).text


@pytest.mark.parametrize(
    "asked", [{"device": "tpu"}, {"extras": ("cpu", "quick")}, {"precision": "int4"}, {"runtime": "jax"}]
)
def test_unknown_wishes_are_refused(asked):
    with pytest.raises(UsageError, match="is not known here"):
        Request(**asked)


def test_a_precision_of_graphs_is_none_of_torch():
    with pytest.raises(UsageError, match="fp16 is a precision of exported graphs"):
        Request(precision="fp16", runtime="torch")


def test_a_precision_of_torch_is_none_of_graphs():
    with pytest.raises(UsageError, match="bf16 is no precision of exported graphs") as problem:
        Request(precision="bf16", runtime="onnx")
    assert problem.value.hint == "Leave out `runtime`, or use fp32 or fp16 or int8 as `precision`."


def test_every_extra_of_the_project_can_be_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert Request(extras=tuple(extras)).extras == tuple(extras)
    found = list(requirements())
    assert {row.extra for row in found} == {None, *extras}
    assert {"pytest", "ray", "onnxscript"} <= {row.name for row in found if row.extra == "test"}  # some by other extras


def test_a_diagnosis_comes_back_from_its_json():
    found = Diagnosis(request=GPU, facts=ON_CPU, findings=tuple(find_problems(ON_CPU, GPU)))
    assert not found.able
    assert Diagnosis.from_dict(found.to_dict()) == found
