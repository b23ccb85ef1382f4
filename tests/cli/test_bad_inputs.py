"""Bad inputs through the real command line: one clear line and a hint, exit code 1, no traceback, nothing left."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.commands import fails
from truncate_kit.core.errors import ModelError
from truncate_kit.models.loading import load_encoder

PAIRS = "sentence1,sentence2,score\n" + "".join(f"the cat {n},a dog {n},{n % 6}\n" for n in range(30))


@pytest.fixture(scope="module")
def models(tiny_folder, tmp_path_factory) -> dict[str, Path]:
    """Models that are damaged in one way each."""
    home = tmp_path_factory.mktemp("models")
    good = tiny_folder("bert")
    made = {"good": good, "deberta": tiny_folder("deberta-v2")}

    def damaged(name: str) -> Path:
        made[name] = Path(shutil.copytree(good, home / name))
        return made[name]

    (damaged("no config") / "config.json").unlink()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (damaged("no tokenizer") if file == "tokenizer.json" else made["no tokenizer"]).joinpath(file).unlink()
    (damaged("no weights") / "model.safetensors").unlink()
    half = damaged("half") / "model.safetensors"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    for name, change in (
        ("nan", lambda w: w["encoder.layer.0.output.dense.weight"].fill_(float("nan"))),
        ("missing", lambda w: w.pop("encoder.layer.0.output.dense.weight")),
    ):
        file = damaged(name) / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})
    for name, values in (("family", {"model_type": "t5"}), ("vocabulary", {"vocab_size": 3})):
        config = damaged(name) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | values))
    (damaged("garbled") / "config.json").write_text("{")
    (damaged("onnx") / "model.onnx").write_bytes(b"no graph")
    (damaged("modules") / "modules.json").write_text('[{"idx": 0, "path": "", "type": "a.b.WordWeights"}]')
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Data files that are wrong in one way each."""
    home = tmp_path_factory.mktemp("files")
    contents = {
        "good.csv": PAIRS,
        "columns.csv": PAIRS.replace("sentence2", "target"),
        "nan.csv": PAIRS.replace("dog 4,4", "dog 4,nan"),
        "range.csv": PAIRS.replace("dog 4,4", "dog 4,40"),
        "word.csv": PAIRS.replace("dog 4,4", "dog 4,much"),
        "empty text.csv": PAIRS.replace("the cat 7", ""),
        "nothing.csv": "",
        "few.csv": "sentence1,sentence2,score\na,b,1\nc,d,2\n",
        "same.csv": "sentence1,sentence2,score\n" + "a,b,3\n" * 20,
        "line.jsonl": '{"sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "a"\n',
        "data.xyz": PAIRS,
    }
    for name, text in contents.items():
        (home / name).write_text(text)
    (home / "latin.csv").write_bytes(PAIRS.replace("cat 3", "café 3").encode("latin-1"))
    (home / "folder").mkdir()
    (home / "folder" / "notes.md").write_text("no data")
    return {path.name: path for path in home.iterdir()}


EVALUATE, FINETUNE, ANALYZE, EXPORT, BENCH = "evaluate", "finetune", "analyze", "export", "bench"
MODELS = [
    # what is wrong, what the line must name
    ("no config", "config.json"),
    ("no tokenizer", "no tokenizer"),
    ("no weights", "weights"),
    ("half", "cannot be read"),
    ("nan", "NaN"),
    ("missing", "encoder.layer.0.output.dense.weight"),
    ("family", "'t5'"),
    ("vocabulary", "vocabulary"),
    ("garbled", "config.json"),
    ("modules", "WordWeights"),
]
DATA = [
    ("columns.csv", "columns.csv"),
    ("nan.csv", "line 6"),
    ("range.csv", "line 6"),
    ("word.csv", "line 6"),
    ("empty text.csv", "line 9"),
    ("nothing.csv", "nothing.csv"),
    ("few.csv", "three pairs"),
    ("same.csv", "two different scores"),
    ("line.jsonl", "line 2"),
    ("data.xyz", "data.xyz"),
    ("latin.csv", "latin.csv"),
    ("folder", "folder"),
]
OPTIONS = [
    ((FINETUNE, "--layer", "three"), "'three'"),
    ((FINETUNE, "--pick", "best"), "'best'"),
    ((FINETUNE, "--within", "1"), "The --pick rule best-dev has no --within"),
    ((FINETUNE, "--layer", "1", "--strategy", "probe"), "--strategy goes with"),
    ((FINETUNE, "--seeds", "0"), "seeds"),
    ((FINETUNE, "--learning-rate", "0"), "--learning-rate 0.0 is out of range"),
    ((FINETUNE, "--objective", "guess"), "'guess'"),
    ((FINETUNE, "--objective", "paraphrase"), "both labels 0 and 1"),
    ((FINETUNE, "--objective", "entailment"), "where the label can be found"),
    ((FINETUNE, "--pooling", "average"), "'average'"),
    ((FINETUNE, "--max-length", "4000"), "4000"),
    ((FINETUNE, "--columns", "a,b"), "three different columns"),
    ((FINETUNE, "--scale", "five"), "'five'"),
    ((FINETUNE, "--device", "toaster"), "'toaster'"),
]


@pytest.mark.parametrize(("model", "named"), MODELS, ids=[name for name, _ in MODELS])
def test_models(model, named, models, files, capfd):
    assert named in fails(capfd, EVALUATE, models[model], "--data", files["good.csv"], "--scale", "0,5")


@pytest.mark.parametrize(("data", "named"), DATA, ids=[name for name, _ in DATA])
def test_data(data, named, models, files, capfd):
    assert named in fails(capfd, EVALUATE, models["good"], "--data", files[data], "--scale", "0,5")


@pytest.mark.parametrize(("arguments", "named"), OPTIONS, ids=[" ".join(words) for words, _ in OPTIONS])
def test_options(arguments, named, models, files, capfd, tmp_path):
    command, *options = arguments
    message = fails(
        capfd, command, models["good"], "--data", files["good.csv"], "--workspace", tmp_path / "out", *options
    )
    assert named in message
    assert not list((tmp_path / "out").glob("**/*.json"))


def test_names_that_are_nothing(models, files, capfd, tmp_path):
    assert "nowhere" in fails(capfd, EVALUATE, "./nowhere", "--data", files["good.csv"])
    assert "owner/nothing" in fails(capfd, EVALUATE, "owner/nothing", "--data", files["good.csv"])
    assert "is a file" in fails(capfd, EVALUATE, files["good.csv"], "--data", files["good.csv"])
    assert "missing.csv" in fails(capfd, EVALUATE, models["good"], "--data", tmp_path / "missing.csv")
    for slip in ("mini-bret", "mini-electra", "minibert"):
        with pytest.raises(ModelError) as caught:
            load_encoder(slip)
        assert "bundled mini-bert, mini-electra-discriminator," in caught.value.hint


def test_a_layer_that_cannot_be_held(models, files, capfd, tmp_path):
    message = fails(
        capfd, FINETUNE, models["deberta"], "--layer", "0", "--data", files["good.csv"], "--workspace", tmp_path
    )
    assert "deberta-v2" in message


def test_a_graph_that_is_none(models, files, capfd):
    arguments = ("--data", files["good.csv"], "--runtime", "onnx")
    assert "model.onnx" in fails(capfd, EVALUATE, models["onnx"], *arguments)
    assert "model.onnx" in fails(capfd, EVALUATE, models["good"], *arguments)


def test_a_folder_that_cannot_be_written(models, files, capfd, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for command in (ANALYZE, FINETUNE):
        message = fails(
            capfd, command, models["good"], "--data", files["good.csv"], "--workspace", tmp_path / "file" / "out"
        )
        assert "Cannot write" in message
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_file_without_texts(models, capfd, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n")
    for command, *options in ((ANALYZE,), ("distill", "--blocks", "1")):
        said = fails(
            capfd, command, models["good"], "--texts", tmp_path / "blank.txt", "--workspace", tmp_path, *options
        )
        assert "blank.txt is empty" in said


def test_bench_of_what_is_not_there(capfd, tmp_path):
    assert "nowhere" in fails(capfd, BENCH, "./nowhere", "--workspace", tmp_path)
    assert "CUDA" in fails(capfd, BENCH, "--device", "cuda", "--workspace", tmp_path)
