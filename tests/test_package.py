"""What is installed, and what importing it costs."""

import os
import pickle
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas
import pytest

import truncate_kit
from tests.support.made_results import a_combination, a_contrast, a_distillation, a_sweep, some_heads, write_run
from tests.support.pairs import word_splits
from truncate_kit.core.errors import UsageError
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.training.cutting import CutResult

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "scipy", "datasets", "mteb"}


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nsys.stderr.write(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


def command(*arguments: str) -> str:
    """Code that runs a command, which has to end well."""
    run = f"try:\n    main({list(arguments)})\nexcept SystemExit as end:\n    assert not end.code"
    return f"from truncate_kit_cli.app import main\n{run}"


def test_onnxruntime_reports_to_nobody_and_writes_no_file(tmp_path):
    """Since 1.31 it would number the machine, note what runs in ~/.cache, and send that away."""
    code = (
        "import truncate_kit, onnxruntime, sys\n"
        "from onnx import TensorProto, helper\n"
        "ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in 'ab']\n"
        "graph = helper.make_graph([helper.make_node('Identity', ['a'], ['b'])], 'g', ends[:1], ends[1:])\n"
        "model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)\n"
        "onnxruntime.InferenceSession(model.SerializeToString()).run(None, {'a': [1.0]})\n"
    )
    own = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment = own | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, timeout=100)
    assert list(tmp_path.rglob("*")) == []


def test_what_reads_results_only_imports_no_torch(tiny_folder, tmp_path):
    """Results of every kind, `status` of them, and `report`, which says how the saved model is loaded."""
    made = {"sweep": a_sweep(), "contrast": a_contrast(), "heads": some_heads(), "combined": a_combination(2)}
    made |= {"cut": CutResult(model="mini", layer=1, depth=3, parameters=5, full_parameters=8)}
    save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "model")
    folder = write_run(tmp_path / "exported", tmp_path / "model", distilled=a_distillation(), **made)
    assert not {*HEAVY, "matplotlib"} & modules_after(command("status", "--workspace", str(folder)))
    loaded = modules_after(command("report", str(folder)))
    assert "truncate_kit.report.chart" in loaded
    assert "SentenceTransformer(" in (folder / "report.html").read_text()
    assert not HEAVY & loaded


def test_every_public_name_is_there_and_every_module_can_be_imported():
    for path in (ROOT / "truncate_kit").rglob("*.py"):
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    for name in truncate_kit.__all__:  # a package of this name would hide it
        assert not isinstance(getattr(truncate_kit, name), ModuleType), name


def test_public_functions_take_names_tables_and_paths_as_text(tiny_folder, tmp_path):
    folder, pairs = tiny_folder("bert"), word_splits().train.pairs
    wanted, rows = evaluate(load_encoder(folder), pairs), [(pair.first, pair.second, pair.target) for pair in pairs]
    for table in (pandas.DataFrame(rows, columns=["text1", "text2", "score"]), list(pairs), rows):
        assert truncate_kit.evaluate(str(folder), pairs=table) == wanted
    lean = truncate_kit.save_encoder(truncate_kit.truncate(folder, 1), str(tmp_path / "lean"))
    assert truncate_kit.profile(encoder=lean, pairs=rows).depth == 1
    with pytest.raises(UsageError, match="not a int"):
        truncate_kit.truncate(3, 1)
    assert pickle.loads(pickle.dumps(truncate_kit.distill)) is truncate_kit.distill
    assert all(name in truncate_kit.__doc__ for name in truncate_kit.__all__[1:])


def test_the_packages_that_are_installed_are_the_folders():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "truncate_kit").rglob("__init__.py")}
    assert set(settings["packages"]) == folders | {"truncate_kit_cli"}
    assert settings["package-dir"]["truncate_kit_cli"] == "cli"


def test_bundled_models_are_small_and_half_precision():
    from safetensors.torch import load_file

    folders = sorted((ROOT / "truncate_kit/models/miniatures").iterdir())
    encoders = ["mini-bert", "mini-electra-discriminator", "mini-electra-generator"]
    assert [folder.name for folder in folders] == [*encoders, "mini-gpt2"]
    for folder in folders:
        assert (folder / "model.safetensors").stat().st_size <= 8 * 2**20
        assert {str(weight.dtype) for weight in load_file(folder / "model.safetensors").values()} == {"torch.float16"}


def test_no_test_imports_a_test():
    """What several tests need stands in tests/support, so that a test can be read, moved and run alone."""
    for path in (ROOT / "tests").rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (tests[\w.]*)", path.read_text(), flags=re.MULTILINE)
        assert all(f"{module}.".startswith(("tests.support.", "tests.fuzz.")) for module in imported), path
