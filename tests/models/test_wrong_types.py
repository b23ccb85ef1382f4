"""What Python callers give by mistake: one sentence that says what is wrong, and a hint."""

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.analysis.profiling import profile
from truncate_kit.data import RetrievalSet, TextPair, load_pairs, raw_texts
from truncate_kit.data.suites import StsSet
from truncate_kit.errors import DataError, UsageError
from truncate_kit.evaluation.comparing import compare
from truncate_kit.evaluation.evaluating import evaluate_retrieval
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.evaluation.sts import score_sts
from truncate_kit.export.exporting import export_onnx
from truncate_kit.methods.bert_lc.combine import combine, combined_encoder
from truncate_kit.methods.contrast.running import finetune_contrastive
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.priors.adapting import adapt
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.models import keep, load_encoder, save_encoder, truncate
from truncate_kit.models.word_pieces import keep_words
from truncate_kit.representations import layer_states
from truncate_kit.serving import encode_file
from truncate_kit.vectors import similarities

TEXTS = ["one cat", "two dogs", "three birds"]
PAIRS = (TextPair("one", "two", 0.0), TextPair("one", "three", 0.5), TextPair("one", "four", 1.0))
SEARCH = RetrievalSet(
    name="set",
    document_ids=("a", "b"),
    documents=("one cat", "two dogs"),
    query_ids=("p",),
    queries=("cat",),
    relevance=({0: 1.0},),
)
FRAME = np.array([["one cat", "two dogs"]])  # as the frames of pandas have two dimensions


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return load_encoder(tiny_folder("bert"))


@pytest.mark.parametrize(("first", "second"), [((3, 8), (1, 8)), ((3, 8), (2, 8)), ((8,), (8,))])
def test_similarities_are_of_pairs(encoder, first, second):
    rows = np.ones(first, np.float32), np.ones(second, np.float32)
    for measure in (encoder.similarities, partial(similarities, object())):
        with pytest.raises(UsageError, match=re.escape(f"shapes {first} and {second} are no pairs")):
            measure(*rows)


def test_states_are_tensors():
    with pytest.raises(UsageError, match="states_x must be a tensor, found ndarray"):
        cka_matrix(np.ones((2, 8, 4), np.float32))


@pytest.mark.parametrize("columns", ["sentence1,sentence2,score", "abc", 3])
def test_columns_are_listed(columns, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\n" + "a cat,a dog,1\n" * 3)
    with pytest.raises(DataError, match="is no list of columns"):
        load_pairs(path, columns=columns)


@pytest.mark.parametrize("layer", ["2", None, [1, 2], 1.0, True])
def test_a_layer_is_a_whole_number(encoder, layer):
    with pytest.raises(UsageError, match=r"`layer` .+ is no whole number") as refused:
        truncate(encoder, layer)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (3, "`blocks` 3 is no list"),
        ("1,2", "`blocks` '1,2' is no list"),
        (None, "`blocks` None is no list"),
        ([1.0], r"`blocks` 1\.0 is no whole number"),
        ([True, 2], "`blocks` True is no whole number"),
    ],
)
def test_blocks_are_a_list_of_whole_numbers(encoder, blocks, said):
    with pytest.raises(UsageError, match=said) as refused:
        keep(encoder, blocks)
    assert refused.value.hint


def test_numbers_of_numpy_are_whole_numbers(encoder):
    assert keep(encoder, np.array([1, 3])).depth == 2
    assert truncate(encoder, np.int64(2)).depth == 2


@pytest.mark.parametrize("name", [None, 3, ["mini-bert"]])
def test_a_model_is_a_name_or_a_path(name):
    with pytest.raises(UsageError, match="A model is loaded by its folder or name") as refused:
        load_encoder(name)
    assert "miniature" in refused.value.hint


def test_a_length_is_a_whole_number(tiny_folder):
    with pytest.raises(UsageError, match="`max_length` '5' is no whole number"):
        load_encoder(tiny_folder("bert"), max_length="5")


@pytest.mark.parametrize("size", [None, "8", 8.0, True])
def test_a_batch_size_is_a_whole_number(encoder, size):
    with pytest.raises(UsageError, match=r"`batch_size` .+ is no whole number"):
        encoder.encode(["one cat"], batch_size=size)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("encoder", lambda model, out: profile(model, ["one cat"])),
        ("encoder", lambda model, out: finetune(model, load_pairs("bundled"), out=out)),
        ("encoder", lambda model, out: distill(model, ["one cat"], out=out)),
        ("encoder", export_onnx),
        (
            "encoder",
            lambda model, out: finetune_contrastive(model, raw_texts("few", TEXTS), load_pairs("bundled"), out=out),
        ),
        ("encoder", lambda model, out: finetune_frozen(model, load_pairs("bundled"), out=out)),
        ("encoder", lambda model, out: combine(model, load_pairs("bundled").dev)),
        ("encoder", lambda model, out: combined_encoder(model, [1, 2])),
        ("encoder", lambda model, out: adapt(model, ["one cat"])),
        ("encoder", lambda model, out: keep_words(model, ["one cat"])),
        ("encoder", lambda model, out: truncate(model, 1)),
        ("encoder", lambda model, out: keep(model, [1])),
        ("encoder", save_encoder),
        ("encoder", lambda model, out: layer_states(model, TEXTS)),
        ("encoder", lambda model, out: encode_file(model, Path("texts.txt"), out)),
        ("reference", lambda model, out: profile(load_encoder("mini-bert"), ["one cat"], reference=model)),
    ],
    ids=[
        *("profile", "finetune", "distill", "export_onnx", "contrast", "freeze", "combine", "combined", "adapt"),
        *("words", "truncate", "keep", "save", "states", "file", "reference"),
    ],
)
def test_a_model_has_to_be_loaded_first(name, use, tmp_path):
    with pytest.raises(UsageError, match=f"A loaded model is needed as `{name}`, not .+ type str") as refused:
        use("mini-bert", tmp_path / "out")
    assert "load_encoder" in refused.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("encoder", lambda model: evaluate(model, PAIRS)),
        ("encoder", lambda model: evaluate_retrieval(model, SEARCH, model="m")),
        ("full", lambda model: compare(model, model, SEARCH)),
        ("encoder", lambda model: score_sts(model, [StsSet(name="STSB", pairs=PAIRS, published_pairs=3)], model="m")),
    ],
    ids=["evaluate", "retrieval", "compare", "sts"],
)
def test_what_encodes_is_no_name(name, use):
    """A string has a method `encode` as well, of another kind."""
    for model in ("mini-bert", None):
        with pytest.raises(UsageError, match=f"A model that can `encode` is needed as `{name}`") as refused:
            use(model)
        assert "load_encoder" in refused.value.hint


@pytest.mark.parametrize("texts", [3, {"a": "one cat"}, {"one cat"}, FRAME], ids=lambda value: type(value).__name__)
def test_texts_are_a_list(encoder, texts):
    with pytest.raises(UsageError, match="Several texts are needed") as refused:
        encoder.encode(texts)
    assert "list of texts" in refused.value.hint


def test_a_model_that_is_saved_again_has_the_same_files(tiny_folder, tmp_path):
    first = save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "first")
    second = save_encoder(load_encoder(first), tmp_path / "second")

    def digests(folder):
        return {
            file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.rglob("*")
            if file.is_file()
        }

    assert digests(first) == digests(second)
