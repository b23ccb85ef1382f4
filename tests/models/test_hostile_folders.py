"""What a model folder from outside must not do: lead out of itself, or bring code that runs."""

import io
import json
import resource
import shutil
import time
from pathlib import Path

import pytest

from tests.support.families import TINY_CONFIGS
from truncate_kit.errors import ModelError
from truncate_kit.models import load_encoder
from truncate_kit.models.model_folder import load_config
from truncate_kit.models.tokenizer import load_reader
from truncate_kit.serving.work import _Graph

SECRET = "a secret of the one who runs this"


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A copy of a sentence-transformers-like model, and a secret beside it."""
    place = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), place)
    (tmp_path / "secretdir").mkdir()
    (tmp_path / "secretdir" / "config.json").write_text(json.dumps({"secret": SECRET}))
    return place


def write_modules(folder, *paths):
    kinds = ["Transformer", *["Dense"] * (len(paths) - 1)]
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listing))


@pytest.mark.parametrize("read", [load_encoder, load_config, load_reader])
@pytest.mark.parametrize("path", ["../secretdir", "a/../../secretdir", "ABSOLUTE", "link"])
def test_a_module_path_out_of_the_folder_is_refused(folder, read, path):
    secret = folder.parent / "secretdir"
    (folder / "a").mkdir()
    if path == "link":
        (folder / "link").symlink_to(secret)
    write_modules(folder, "", str(secret) if path == "ABSOLUTE" else path)
    with pytest.raises(ModelError, match="outside the model's own folder") as raised:
        read(folder)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("path", [7, None, ["x"], {"a": 1}])
def test_a_module_path_that_is_no_text_is_refused(folder, path):
    write_modules(folder, "", path)
    with pytest.raises(ModelError):
        load_encoder(folder)


@pytest.mark.parametrize("where", ["", "1_Dense"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "added.txt"])
def test_a_file_that_links_out_of_the_folder_is_refused(folder, where, name):
    secret = folder.parent / "secretdir" / "config.json"
    write_modules(folder, "", *([where] if where else []))
    (folder / where).mkdir(exist_ok=True)
    (folder / where / name).unlink(missing_ok=True)
    (folder / where / name).symlink_to(secret)
    with pytest.raises(ModelError, match=f"{name} is a link to .*outside"):
        load_encoder(folder)


def test_links_of_the_hubs_cache_and_a_link_to_the_folder_itself_are_no_attack(folder, tmp_path):
    repository = tmp_path / "models--owner--name"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for place, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(place))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(place))
    (tmp_path / "short").symlink_to(snapshot)
    expected = load_encoder(snapshot).vectors(["a cat"])
    assert (load_encoder(tmp_path / "short").vectors(["a cat"]) == expected).all()


def cached(folder, repository, place):
    """A snapshot as the hub's cache has it, all files of `folder` in the folder `place` of it."""
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    (snapshot / place).mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / place / file.name).symlink_to(blobs / str(number))
    (blobs / "listing").write_text("[]")
    (snapshot / "modules.json").symlink_to(blobs / "listing")
    return snapshot


@pytest.mark.parametrize("place", ["0_Transformer", "parts/0_Transformer"])
def test_links_of_the_hubs_cache_in_the_folder_of_a_module_are_no_attack(folder, tmp_path, place):
    """As sentence-transformers saved its models before version 2."""
    expected = load_encoder(folder).vectors(["a cat"])
    snapshot = cached(folder, tmp_path / "models--owner--name", place)
    write_modules(snapshot, place)
    assert (load_encoder(snapshot).vectors(["a cat"]) == expected).all()


@pytest.mark.parametrize("target", ["secretdir", "models--owner--other/blobs", "models--owner--name/refs"])
def test_links_of_a_module_past_the_blobs_of_its_own_repository_are_refused(folder, tmp_path, target):
    snapshot = cached(folder, tmp_path / "models--owner--name", "0_Transformer")
    write_modules(snapshot, "0_Transformer")
    config = snapshot / "0_Transformer" / "config.json"
    (tmp_path / target).mkdir(parents=True, exist_ok=True)
    elsewhere = shutil.copy(config, tmp_path / target / "config.json")
    config.unlink()
    config.symlink_to(elsewhere)
    with pytest.raises(ModelError, match=r"config\.json is a link to .*outside"):
        load_encoder(snapshot)


@pytest.mark.parametrize("name", ["../escaped.txt", "a/../../escaped.txt", "ABSOLUTE"])
def test_a_worker_writes_the_files_of_a_model_nowhere_else(tmp_path, monkeypatch, name):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    target = tmp_path / "escaped.txt"
    graph = _Graph("model.onnx", {str(target) if name == "ABSOLUTE" else name: b"written"})
    with pytest.raises(ModelError):
        graph.unfolded()
    assert not list(tmp_path.rglob("escaped.txt"))


def plant(folder, marker):
    """Code in the folder that leaves a mark wherever it is imported."""
    code = f"from pathlib import Path\nPath({str(marker)!r}).write_text('ran')\n"
    code += "from transformers import PreTrainedTokenizerFast, PreTrainedModel\n"
    code += "class Evil(PreTrainedTokenizerFast):\n    pass\nclass EvilModel(PreTrainedModel):\n    pass\n"
    (folder / "evil.py").write_text(code)


def changed(file, values):
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | values))


@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("slow", [True, False])
def test_code_of_a_tokenizer_is_refused_without_a_question(family, slow, tiny_folder, tmp_path, monkeypatch):
    folder, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(tiny_folder(family), folder)
    plant(folder, marker)
    classes = ["evil.Evil", None] if slow else [None, "evil.Evil"]
    changed(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": classes}, "tokenizer_class": "Evil"})
    answers = io.StringIO("y\ny\ny\n")
    monkeypatch.setattr("sys.stdin", answers)
    try:
        load_encoder(folder)  # by transformers' own tokenizer where the architecture has one
    except ModelError as error:
        assert "brings its own code" in str(error)  # noqa: PT017  # both ends are right; to run it is not
    else:
        assert family != "llama"
    assert not marker.exists()
    assert answers.tell() == 0  # nobody was asked


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_code_of_a_model_is_not_run_in_any_family(family, tiny_folder, tmp_path, monkeypatch, caplog):
    """A known architecture is loaded by transformers' own class, whatever code the folder brings beside it."""
    folder, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(tiny_folder(family), folder)
    expected = load_encoder(folder).vectors(["a cat"])
    plant(folder, marker)
    classes = {"AutoConfig": "evil.EvilModel", "AutoModel": "evil.EvilModel", "AutoModelForMaskedLM": "evil.EvilModel"}
    changed(folder / "config.json", {"auto_map": classes})
    answers = io.StringIO("y\ny\ny\n")
    monkeypatch.setattr("sys.stdin", answers)
    assert (load_encoder(folder).vectors(["a cat"]) == expected).all()
    assert not marker.exists()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1  # also where the folder is read again
    assert said[0].startswith(f"{folder}/config.json names code of its own (auto_map), which is not run")
    assert answers.tell() == 0


def test_an_unknown_architecture_with_code_is_refused_without_a_question(folder, monkeypatch, tmp_path):
    plant(folder, tmp_path / "marker")
    changed(folder / "config.json", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilModel"}})
    answers = io.StringIO("y\n")
    monkeypatch.setattr("sys.stdin", answers)
    with pytest.raises(ModelError, match="evil"):
        load_encoder(folder)
    assert not (tmp_path / "marker").exists()
    assert answers.tell() == 0


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("value", ["owner/kernel", {"": "owner/kernel@main"}])
def test_attention_kernels_of_the_hub_are_refused(folder, key, value):
    changed(folder / "config.json", {key: value})
    with pytest.raises(ModelError, match="code from the hub"):
        load_encoder(folder)


HUGE_SIZES = [
    ("num_hidden_layers", 1_000_000),
    ("num_hidden_layers", 10**15),
    ("num_hidden_layers", "12"),
    ("num_hidden_layers", True),
    ("num_hidden_layers", -1),
    ("vocab_size", 2**31),
    ("vocab_size", 10**6),
    ("hidden_size", 2**20),
    ("intermediate_size", 2**40),
    ("max_position_embeddings", 10**9),
    ("type_vocab_size", 10**9),
    ("num_labels", 10**9),
    ("num_attention_heads", -2),
]


@pytest.mark.parametrize(("name", "value"), HUGE_SIZES, ids=[f"{name} {value}" for name, value in HUGE_SIZES])
def test_sizes_that_the_weights_cannot_fill_are_refused_before_memory_is_taken(folder, name, value):
    changed(folder / "config.json", {name: value})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    with pytest.raises(ModelError, match=r"config\.json") as refused:
        load_encoder(folder)
    assert refused.value.hint
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    "groups",
    [
        {"num_hidden_groups": 10**9},
        {"inner_group_num": 10**9},
        {"num_hidden_layers": 1024, "num_hidden_groups": 1024, "inner_group_num": 1024},  # a million blocks
    ],
)
def test_absurd_groups_of_shared_blocks_are_refused(tiny_folder, tmp_path, groups):
    folder = tmp_path / "albert"
    shutil.copytree(tiny_folder("albert"), folder)
    changed(folder / "config.json", groups)
    with pytest.raises(ModelError, match="groups of|" + next(iter(groups))):
        load_encoder(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[1]", "7", "null", '"text"'])
@pytest.mark.parametrize("name", ["config.json", "modules.json", "config_sentence_transformers.json"])
def test_json_of_another_kind_or_of_great_depth_is_damage(folder, name, text):
    write_modules(folder, "")
    (folder / name).write_text(text)
    with pytest.raises(ModelError, match=r"config|modules"):
        load_encoder(folder)
