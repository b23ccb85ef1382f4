"""Both encoders take the methods and arguments of sentence-transformers, and give its values."""

import pickle

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tests.support.processes import Program
from truncate_kit.core.errors import UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder

TEXTS = ["the cat sat", "a dog ran to the mat", "the cat sat", "a"]
CALLS = [
    {}, {"prompt_name": "query"}, {"prompt": "a dog "}, {"batch_size": 1}, {"normalize_embeddings": True},
    {"show_progress_bar": True},
]  # fmt: skip


@pytest.fixture(scope="module", params=["torch", "onnx"])
def both(request, prompting):
    """An encoder, and sentence-transformers with the same folder."""
    folder = prompting(prompts={"query": "the cat ", "document": "", "other": "a "}, default_prompt_name="other")
    ours = load_encoder(folder)
    if request.param == "onnx":
        export_onnx(ours, folder)
        ours = OnnxEncoder.load(folder)
    return ours, SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_calls_give_its_vectors(both, call):
    ours, theirs = both
    assert ours.encode(TEXTS, **call) == pytest.approx(theirs.encode(TEXTS, **call), abs=1e-5)
    assert ours.encode(TEXTS[0], **call) == pytest.approx(theirs.encode(TEXTS[0], **call), abs=1e-5)
    for name in ("encode_query", "encode_document"):
        if not call.keys() & {"prompt", "prompt_name"}:
            expected = getattr(theirs, name)(TEXTS, **call)
            assert getattr(ours, name)(TEXTS, **call) == pytest.approx(expected, abs=1e-5)


def test_tensors_and_what_is_refused(both):
    ours, _ = both
    vectors = ours.encode(TEXTS, convert_to_tensor=True, device="cpu")
    assert isinstance(vectors, torch.Tensor)
    assert ours.encode([]).shape == (0, vectors.shape[1])
    assert not np.allclose(ours.encode(TEXTS, prompt=False), vectors)
    with pytest.raises(UsageError, match="prompt_name"):
        ours.encode(TEXTS, prompt_name="nosuch")


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_follows_the_models_measure(prompting, measure):
    folder = prompting(similarity_fn_name=measure)
    vectors = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    found = load_encoder(folder).similarity(vectors[:3], vectors[2:])
    expected = SentenceTransformer(str(folder), device="cpu").similarity(vectors[:3], vectors[2:])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_they_are_saved_pickled_and_used_by_scikit_learn(both, tmp_path):
    ours, _ = both
    vectors = ours.encode(TEXTS)
    ours.save_pretrained(tmp_path / "saved")
    assert SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS) == pytest.approx(vectors, abs=1e-5)
    assert pickle.loads(pickle.dumps(ours)).encode(TEXTS) == pytest.approx(vectors, abs=1e-6)
    texts = [f"the {'cat' if number % 2 else 'dog'} ran {'to ' * (number % 5)}" for number in range(40)]
    model = make_pipeline(FunctionTransformer(ours.encode), LogisticRegression(C=100))
    scores = cross_val_score(model, texts, [number % 2 for number in range(40)], cv=2)
    assert scores.min() > 0.9


_READ = """
import pickle, sys
from pathlib import Path
encoder = pickle.loads(Path(sys.argv[1]).read_bytes())
print(len(encoder.hidden_states(encoder.tokenize(["a"]))))
"""


def test_a_process_that_built_no_such_model_reads_the_states_of_a_pickled_one(encoder, tmp_path):
    (tmp_path / "encoder").write_bytes(pickle.dumps(encoder))
    assert Program(_READ, tmp_path / "encoder").communicate()[0] == f"{encoder.depth + 1}\n"
