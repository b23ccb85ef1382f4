"""Every way in which an exported folder, its weights or the machine can be wrong, through every command it concerns.

Each ends with one line, one hint, exit code 1, and with all files as they were.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.commands import fails, fails_on_a_full_disk, run
from tests.support.files import model_graded_file
from tests.support.records import QUANTIZED, TASK
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph import save_graph
from truncate_kit.export.record import read_exports, record_with
from truncate_kit.export.settings import ExportSettings
from truncate_kit.export.trace import build_graph
from truncate_kit.hardware import INSTRUCTIONS
from truncate_kit.models import load_encoder, truncate

FAST = ("--quick", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--threads", 1)


@pytest.fixture(scope="module")
def made(tiny_folder, tmp_path_factory) -> Path:
    """A workspace with a lean model, its graph with weights beside it, pairs and texts; tests copy it."""
    home = tmp_path_factory.mktemp("made")
    export_onnx(truncate(load_encoder(tiny_folder("bert")), 1), home / "out/lean", ExportSettings(embed_limit=100))
    model_graded_file(home, home / "out/lean")
    (home / "texts.txt").write_text("a cat\nthe dog\n")
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch) -> Path:
    copy = Path(shutil.copytree(made, tmp_path / "home"))
    (copy / "out/.lock").touch()  # as the training that made the models leaves it
    monkeypatch.chdir(copy)
    return copy


def command(name: str) -> tuple[object, ...]:
    data = ("--data", "pairs.csv", "--scale", "-1,1", "--workspace", "out")
    return {
        "evaluate": ("evaluate", "--runtime", "onnx", *data),
        "encode": ("encode", "texts.txt", "--model", "out/lean"),
        "bench": ("bench", "--backends", "onnx-fp32", *FAST, *data),
        "export": ("export", "--onnx", *data),
        "suite": (
            "evaluate",
            "--runtime",
            "onnx",
            "out/lean",
            "--suite",
            "sts",
            "--data",
            "sets",
            "--workspace",
            "out",
        ),
    }[name]


def contents(home: Path) -> dict[str, bytes]:
    """All files but what a killed `encode` may continue from."""
    found = (path for path in home.rglob("*") if path.is_file() and ".vectors.npy.part" not in path.parts)
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def edit(lean: Path, change) -> None:
    record = lean / "export.json"
    values = json.loads(record.read_text())
    change(values)
    record.write_text(json.dumps(values))


def of_graph(**values):
    return lambda lean: edit(lean, lambda record: record["graphs"][0].update(values))


def rewrite(pattern: str, change):
    def damage(lean: Path) -> None:
        (file,) = lean.glob(pattern)
        file.write_bytes(change(file.read_bytes()))

    return damage


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def unrecorded(damage):
    def both(lean: Path) -> None:
        damage(lean)
        (lean / "export.json").unlink()

    return both


def missing_weights(lean: Path) -> None:
    next(lean.glob("*.data")).unlink()


def graph_of_nan(lean: Path) -> None:
    encoder = load_encoder(lean)
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    save_graph(build_graph(encoder), lean / "model.onnx")


def rename_graph(lean: Path) -> None:
    edited = read_exports(lean).graphs[0]
    (lean / "export.json").unlink()
    (lean / "export.json").write_text(record_with(lean, replace(edited, file="model_int8.onnx")))


RECORDS = {
    "normalized": (of_graph(normalized=True), "was changed"),
    "precision": (of_graph(precision="int8"), "was changed"),
    "width": (of_graph(width=3), "was changed"),
    "mask": (of_graph(mask="lengths"), "was changed"),
    "task": (of_graph(task=TASK.to_dict()), "was changed"),
    "weight_bits": (of_graph(quantization=QUANTIZED.to_dict() | {"weight_bits": 8}), "was changed"),
    "sha256": (of_graph(sha256="0" * 64), "was changed"),
    "no graphs": (lambda lean: edit(lean, lambda record: record.update(graphs=[])), "was changed"),
    "no digest": (lambda lean: edit(lean, lambda record: record.pop("digest")), "has no digest"),
    "a field missing": (lambda lean: edit(lean, lambda record: record["graphs"][0].pop("sha256")), "is damaged"),
    "no JSON": (rewrite("export.json", lambda data: data[:50]), "is damaged"),
    "another shape": (rewrite("export.json", lambda data: b'{"graphs": [3]}'), "is damaged"),
    "a list": (rewrite("export.json", lambda data: b"[1]"), "is damaged"),
}
GRAPHS = {
    "cut short": (rewrite("model.onnx", lambda data: data[: len(data) // 2]), "not the graph that export.json"),
    "one bit": (rewrite("model.onnx", flipped), "not the graph that export.json"),
    "empty": (rewrite("model.onnx", lambda data: b""), "not the graph that export.json"),
    "unknown to the record": (rename_graph, "does not know model.onnx"),
    "cut short, no record": (unrecorded(rewrite("model.onnx", lambda data: data[:300])), "cannot load"),
    "one bit of the weights": (rewrite("*.data", flipped), "does not hold the weights"),
    "weights cut short": (rewrite("*.data", lambda data: data[:100]), "does not hold the weights"),
    "no weights": (missing_weights, "lacks its weights"),
    "no weights, no record": (unrecorded(missing_weights), "cannot load"),
    "NaN, no record": (unrecorded(graph_of_nan), "not a number|NaN"),
}


def test_a_damaged_record_without_its_graph(home, capfd):
    """Where bench would make the graph itself."""
    RECORDS["normalized"][0](home / "out/lean")
    (home / "out/lean/model.onnx").unlink()
    check(home, capfd, "bench", "was changed")


def check(home: Path, capfd, name: str, said: str, *options: object) -> None:
    """The command fails with such a message, and every file is as it was."""
    before = contents(home)
    message = fails(capfd, *command(name), *options)
    assert any(part in message for part in said.split("|")), message
    assert contents(home) == before


@pytest.mark.parametrize("name", [*RECORDS, *GRAPHS])
def test_what_is_damaged_is_said(name, home, capfd):
    damage, said = (RECORDS | GRAPHS)[name]
    damage(home / "out/lean")
    for command_name in ("evaluate", "encode", "bench", *(["export"] if name in RECORDS else [])):
        check(home, capfd, command_name, said)


def test_exporting_again_mends_a_corrupt_graph(home, capfd):
    """As the hint says; the graph of the other precision keeps its record."""
    lean = home / "out/lean"
    other = replace(read_exports(lean).graphs[0], file="model_int8.onnx", precision="int8")
    shutil.copy(lean / "model.onnx", lean / "model_int8.onnx")
    (lean / "export.json").write_text(record_with(lean, other))
    GRAPHS["one bit"][0](lean)
    run(capfd, *command("export"))
    assert [report.file for report in read_exports(lean).graphs] == ["model_int8.onnx", "model.onnx"]
    assert "Graph: out/lean/model.onnx (fp32)." in both(capfd, *command("encode"))


def both(capfd, *arguments: object) -> str:
    """What a command that succeeds says on stderr."""
    from truncate_kit_cli.app import main

    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capfd.readouterr()
    assert not end.value.code, printed.err
    return printed.err


def test_weights_that_are_not_numbers(home, capfd):
    lean = home / "out/lean"
    weights = load_file(lean / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, lean / "model.safetensors", metadata={"format": "pt"})
    for name in ("evaluate", "encode", "bench", "export"):
        options = ("--runtime", "torch") if name in ("evaluate", "encode") else ()
        check(home, capfd, name, "encoder.layer.0.output.dense.weight", *options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_hardware_that_is_not_there(home, capfd):
    for name in ("evaluate", "encode", "bench"):
        check(home, capfd, name, "CUDA was asked for but is not active", "--device", "cuda")
    check(home, capfd, "export", "no kernels", "--precision", "int8", "--target", "cuda")


def test_eight_bits_on_a_processor_that_overflows(home, capfd, monkeypatch):
    """The bench leaves out the row, and fails where there is no other."""
    lean = home / "out/lean"
    quantization = replace(QUANTIZED, weight_bits=8)
    report = replace(read_exports(lean).graphs[0], file="model_int8.onnx", precision="int8", quantization=quantization)
    (lean / "model.onnx").rename(lean / "model_int8.onnx")
    (lean / "export.json").write_text(record_with(lean, report))
    monkeypatch.setenv(INSTRUCTIONS, "avx2 avx_vnni")
    said = both(capfd, *command("encode"))
    assert "Graph: out/lean/model_int8.onnx (int8)." in said
    monkeypatch.setenv(INSTRUCTIONS, "avx2")
    for name in ("evaluate", "encode"):
        check(home, capfd, name, "weights of 8 bits")
    bench = [part if part != "onnx-fp32" else "onnx-int8" for part in command("bench")]
    assert "weights of 8 bits" in fails(capfd, *bench)


@pytest.mark.parametrize(("name", "limit"), [("suite", 100), ("encode", 100), ("bench", 1000), ("export", 60_000)])
def test_a_disk_that_fills_up(name, limit, home, capsys):
    """No file may grow beyond the limit in bytes; on export the graph fits, its record, made long here, does not."""
    lean = home / "out/lean"
    report = read_exports(lean).graphs[0]
    long = replace(report, file="model_int8.onnx", versions={"x": "1" * 100_000})
    shutil.copy(lean / "model.onnx", lean / "model_int8.onnx")
    (lean / "export.json").write_text(record_with(lean, long))
    (lean / "export.json").write_text(record_with(lean, report))
    rows = "".join(f"the cat {'ran ' * (n % 4)},a dog {n % 3},{n % 6}\n" for n in range(12))
    (home / "sets/sts13").mkdir(parents=True)
    (home / "sets/sts13/test.csv").write_text(f"sentence1,sentence2,score\n{rows}")
    before = contents(home)
    fails_on_a_full_disk(capsys, limit, *command(name))
    assert contents(home) == before
