"""Heads over the states of all blocks: each formula against a plain computation, and what a saved model keeps."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel

from tests.support.families import plain_states
from tests.support.heads import make_heads, with_heads
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

TEXTS = ["the cat sat on the mat", "a dog", "the big red dog and not a small blue cat", "not"]


def single_networks(networks):
    """The same weights as one nn.Linear per block."""
    found = []
    first = networks.layers[0]
    for (code, count), weight, bias in zip(networks.runs, first.weights, first.biases, strict=True):
        for number in range(count):
            linear = nn.Linear(networks.width, code)
            linear.weight.data, linear.bias.data = weight[number].T.clone(), bias.view(count, code)[number].clone()
            found.append(linear)
    return found


def plain_codes(networks, states):
    """tanh of one linear layer per block on standardised states."""
    of_blocks = zip(single_networks(networks), states, networks.mean, networks.scale, strict=True)
    return [torch.tanh(linear((state - mean) / scale)) for linear, state, mean, scale in of_blocks]


def plain_distances(codes, first, second):
    rows = []
    for code in codes:
        a, b = code.detach().double().numpy()[first], code.detach().double().numpy()[second]
        rows.append(1 - (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
    return np.stack(rows, axis=1)


def plain_score(heads, distances):
    parameters = {name: value.detach().double().numpy() for name, value in heads.state_dict().items()}
    moved = np.tanh(distances / parameters["scale"] @ parameters["weight"].T + parameters["shift"])
    if heads.kind == "sigmoid":
        return 1 / (1 + np.exp(-(moved @ parameters["out"] + parameters["offset"])))
    height = np.abs(moved - np.tanh(parameters["shift"])) @ np.log1p(np.exp(parameters["out"]))
    return np.exp(-height)


@pytest.mark.parametrize("kind", ["exp", "sigmoid"])
def test_vectors_distances_and_scores(kind):
    heads, states = make_heads(kind=kind), torch.randn(3, 5, 16)
    first, second = [0, 1, 2, 4], [1, 2, 3, 4]
    with torch.no_grad():
        vectors = heads(states)
        found = heads.distances(vectors[first], vectors[second])
        scores = heads.similarities(vectors[first], vectors[second])
    assert vectors.shape == (5, heads.out_features) == (5, 3 + 3 + 5)
    expected = plain_distances(plain_codes(heads.networks, states), first, second)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(scores.numpy(), plain_score(heads, expected), atol=1e-6)
    cosines = nn.functional.cosine_similarity(vectors[first], vectors[second])
    np.testing.assert_allclose(cosines.numpy(), 1 - expected.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_identical_texts_have_exactly_one_and_nothing_has_more(seed):
    heads = make_heads(seed=seed)
    for parameter in (heads.weight, heads.shift, heads.out):
        parameter.data.normal_(std=3, generator=torch.Generator().manual_seed(seed))
    vectors = heads(torch.randn(3, 50, 16))
    assert heads.similarities(vectors, vectors).eq(1).all()
    others = heads.similarities(vectors, vectors.roll(1, 0))
    assert ((others >= 0) & (others < 1)).all()


@pytest.mark.parametrize(("name", "layer"), [("bert", 3), ("gpt2", 2)])
def test_an_encoder_with_heads_reads_the_last_token_of_every_block_whatever_the_padding(tiny_folder, name, layer):
    encoder = with_heads(tiny_folder(name), layer)
    texts = [plain_states(tiny_folder(name), text)[1 : layer + 1] for text in TEXTS]
    states = torch.stack([torch.stack([state[-1] for state in blocks]) for blocks in texts], dim=1)
    codes = torch.cat([nn.functional.normalize(code, dim=1) for code in plain_codes(encoder.heads.networks, states)], 1)
    torch.testing.assert_close(encoder.vectors(TEXTS), codes.detach() / layer**0.5, atol=1e-5, rtol=1e-4)


def test_reloaded_or_cut_at_its_last_layer_it_is_exactly_the_same(tiny_folder, tmp_path):
    encoder = with_heads(tiny_folder("gpt2"), 2)
    before = encoder.vectors(TEXTS)
    for again in (load_encoder(save_encoder(encoder, tmp_path / "m")), truncate(encoder, 2)):
        assert (again.pooling, again.depth) == ("last", 2)
        after = again.vectors(TEXTS)
        assert torch.equal(before, after)
        assert torch.equal(encoder.similarities(before, before.flip(0)), again.similarities(after, after.flip(0)))
    assert truncate(encoder, 1).heads is None
    assert not any(".2." in name for name in load_file(tmp_path / "m/model.safetensors"))  # no upper block


def test_others_load_the_frozen_blocks_or_refuse_but_give_no_other_vectors(tiny_folder, tmp_path):
    encoder = with_heads(tiny_folder("bert"), 2)
    folder = save_encoder(encoder, tmp_path / "m")
    batch = encoder.tokenize(TEXTS)
    with torch.no_grad():
        found = AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
    assert torch.equal(found, load_encoder(tiny_folder("bert")).hidden_states(batch)[2])
    with pytest.raises(Exception, match="LayerHeads"):
        SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
