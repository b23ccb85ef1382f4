"""The profile of a model: published values of the miniatures, and definitions on tiny models."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from scipy import stats

from tests.support import cka as plain
from tests.support.pairs import TEXTS, made_texts, pairs_of
from truncate_kit.analysis import profile as profiling
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.pairs import TextPair, load_pairs, read_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.models.layer_pooling import LayerAttentionPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import layer_states, truncate


@pytest.fixture(scope="module")
def other(tiny_folder):
    return load_encoder(tiny_folder("electra-generator"))


@pytest.fixture(scope="module")
def published(shared_models):
    """Rows of the table that describes the miniatures, by name."""
    lines = (shared_models / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: [float(value) for value in row[1:]] for row in cells if "untrained" in row[0] or "CKA" in row[0]}


@pytest.fixture(scope="module")
def mini_bert(shared_models):
    """The reference of the miniatures; the states of a batch that it has read before are kept, 190 MB in all."""
    bert = load_encoder(shared_models / "mini-bert")
    read, kept = bert.hidden_states, {}

    def hidden_states(batch, *, raw=False):
        key = raw, *((name, tuple(values.shape), values.numpy().tobytes()) for name, values in batch.items())
        if key not in kept:
            kept[key] = read(batch, raw=raw)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bert, "hidden_states", hidden_states)
        yield bert


@pytest.mark.parametrize(("name", "falls"), [("electra-discriminator", True), ("electra-generator", False)])
def test_miniatures_show_what_was_published_of_them(name, falls, mini_bert, published, shared_models, shared_data):
    pairs = load_pairs(shared_data / "stsb/en").test
    found = profile(
        load_encoder(shared_models / f"mini-{name}"),
        reference=mini_bert,
        pairs=pairs,
        settings=AnalysisSettings(outliers=0),
    )
    short = name.removeprefix("electra-")
    assert found.cka.values == pytest.approx(published[f"{short}, CKA to bert"], abs=0.011)
    if falls:
        assert found.spearman == pytest.approx(published["discriminator, untrained, test"], abs=0.11)
    assert (found.num_texts, found.num_repeats, found.num_pairs) == (2552, 2758 - 2552, len(pairs))
    assert not found.streamed
    assert found.drop.from_layer in ((4, 5, 6) if falls else (None,))
    for low, value, high in zip(found.cka.low, found.cka.values, found.cka.high, strict=True):
        assert low < value < high < low + 0.1


@pytest.mark.parametrize(("estimator", "kernel"), [("debiased", "linear"), ("biased", "rbf")])
def test_cka_of_both_estimators_and_kernels(estimator, kernel, encoder, other):
    found = profile(encoder, TEXTS, reference=other, settings=AnalysisSettings(estimator=estimator, kernel=kernel))
    own, theirs = layer_states(encoder, TEXTS), layer_states(other, TEXTS)
    options = {"estimator": estimator, "kernel": kernel}
    expected = plain.matrix(own, theirs, **options)
    torch.testing.assert_close(torch.tensor(found.cka_matrix).double(), expected, atol=1e-5, rtol=0)
    assert found.cka.values == pytest.approx(expected.diagonal().tolist(), abs=1e-5)
    assert found.cka.reference_layers == (0, 1, 2, 3)
    assert (found.estimator, found.kernel) == (estimator, kernel)


def test_curve_without_outlier_dimensions(encoder, other):
    found = profile(encoder, TEXTS, reference=other, settings=AnalysisSettings(outliers=2))
    cleaned = []
    for states in (layer_states(encoder, TEXTS), layer_states(other, TEXTS)):
        kept = [layer[:, layer.var(0).argsort()[:-2]] for layer in states]  # all but the two of largest variance
        cleaned.append(torch.stack(kept))
    expected = plain.matrix(*cleaned).diagonal().tolist()
    assert found.cka_without_outliers.values == pytest.approx(expected, abs=1e-5)
    assert found.cka_without_outliers.values != pytest.approx(found.cka.values, abs=1e-3)
    assert profile(encoder, TEXTS, reference=other, settings=AnalysisSettings(outliers=0)).cka_without_outliers is None


@pytest.mark.parametrize("texts", [None, TEXTS, made_texts(30, seed=5)])
def test_spearman_is_that_of_the_model_cut_at_each_layer(texts, encoder):
    pairs = pairs_of(TEXTS)
    found = profile(encoder, texts, pairs=pairs, settings=AnalysisSettings(pooling="max"))
    for layer in range(4):
        cut = truncate(encoder, layer)
        cut.pooling = "max"
        assert found.spearman[layer] == pytest.approx(evaluate(cut, pairs).spearman, abs=1e-6)
    assert found.num_pairs == 80
    assert found.pooling == "max"
    if texts is not None:
        assert found.num_texts == len(texts)


def test_parameters_are_those_of_the_model_cut_at_each_layer(encoder, tiny_folder):
    found = profile(encoder, TEXTS)
    assert found.parameters == tuple(truncate(encoder, layer).num_parameters for layer in range(4))
    pooled = load_encoder(tiny_folder("bert"))
    pooled.pool_with(LayerAttentionPooling(pooled.width))
    expected = tuple(truncate(pooled, layer).num_parameters for layer in range(4))
    assert profile(pooled, TEXTS).parameters == expected
    assert expected[3] > found.parameters[3]
    deberta = profile(load_encoder(tiny_folder("deberta-v3")), TEXTS)
    assert deberta.parameters[0] is None
    assert deberta.parameters[1] is not None


@pytest.mark.parametrize("with_reference", [True, False])
def test_streamed_equals_in_memory(with_reference, encoder, other):
    beside = {"reference": other if with_reference else None, "pairs": pairs_of(TEXTS)}
    held = profile(encoder, TEXTS, settings=AnalysisSettings(streamed=False, outliers=2), **beside)
    streamed = profile(encoder, TEXTS, settings=AnalysisSettings(streamed=True, outliers=2), **beside)
    assert streamed.streamed
    assert streamed.cka.values == pytest.approx(held.cka.values, abs=1e-5)
    assert streamed.cka.reference_layers == held.cka.reference_layers
    assert streamed.cka_without_outliers.values == pytest.approx(held.cka_without_outliers.values, abs=1e-5)
    for name in ("spearman", "block_influence", "angular_distance", "effective_rank", "anisotropy"):
        assert getattr(streamed, name) == pytest.approx(getattr(held, name), rel=1e-4)
    assert streamed.cka.low == held.cka.low is None  # random pairs connect all texts


def test_the_interval_of_a_stream_is_that_of_block_means(encoder, other):
    how = AnalysisSettings(streamed=True, outliers=0, intervals=5, level=0.9)
    found = profile(encoder, TEXTS, reference=other, settings=how).cka
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    x, y = (layer_states(model, [TEXTS[place] for place in order]) for model in (encoder, other))
    for layer, (low, value, high) in enumerate(zip(found.low, found.values, found.high, strict=True)):
        parts = [float(plain.cka(x[layer, block], y[layer, block])) for block in torch.arange(60).chunk(5)]
        reach = stats.t.ppf(0.95, 4) * stats.sem(parts)
        assert (low, high) == pytest.approx((value - reach, value + reach), abs=1e-4)


def test_a_few_texts_are_streamed_without_intervals(encoder, monkeypatch):
    """Ten blocks of three texts are too few for CKA; the texts are not."""
    texts = made_texts(30)
    found, held = (profile(encoder, texts, settings=AnalysisSettings(streamed=streamed)) for streamed in (True, False))
    monkeypatch.setattr(profiling, "IN_MEMORY_BYTES", 1)
    for streamed in (found, profile(encoder, texts)):
        assert streamed.streamed
        assert streamed.cka.values == pytest.approx(held.cka.values, abs=1e-5)
        assert streamed.cka.low is None


def test_a_limit_draws_texts_and_pairs(encoder):
    pairs = pairs_of(TEXTS)
    found = profile(encoder, pairs=pairs, settings=AnalysisSettings(max_texts=20))
    whole = len({text for pair in pairs for text in (pair.first, pair.second)})
    assert found.num_texts in (19, 20)
    assert found.num_not_drawn == whole - found.num_texts
    assert 0 < found.num_pairs < 80
    assert profile(encoder, pairs=pairs, settings=AnalysisSettings(max_texts=20)) == found
    assert profile(encoder, pairs=pairs, settings=AnalysisSettings(max_texts=20, seed=1)) != found
    raw = profile(encoder, TEXTS, settings=AnalysisSettings(max_texts=20))
    assert (raw.num_texts, raw.num_not_drawn) == (20, 40)
    assert raw != profile(encoder, TEXTS[:20])  # drawn, not the first ones
    assert profile(encoder, TEXTS, settings=AnalysisSettings(max_texts=100)).num_not_drawn == 0


def test_raw_states_keep_block_influence_on_one_footing(tiny_folder):
    llama = load_encoder(tiny_folder("llama"))
    normed, raw = profile(llama, TEXTS), profile(llama, TEXTS, settings=AnalysisSettings(raw=True))
    assert raw.raw
    assert raw.cka_matrix != normed.cka_matrix
    assert raw.block_influence == pytest.approx(normed.block_influence, rel=1e-5)


def test_layer_without_information_has_no_value_and_json_no_nan(encoder, other):
    """With CLS pooling the embeddings are the same for every text."""
    found = profile(encoder, TEXTS, reference=other, pairs=pairs_of(TEXTS), settings=AnalysisSettings(pooling="cls"))
    assert found.cka.values[0] is None
    assert found.cka_matrix[0][2] is None
    assert found.spearman[0] is None
    assert found.spearman[1] is not None
    assert found.drop is not None
    shallow = [profile(truncate(encoder, layer), TEXTS) for layer in (0, 1)]  # without a middle
    assert [(one.drop, len(one.block_influence)) for one in shallow] == [(None, 0), (None, 1)]
    for one in (found, *shallow):
        text = one.to_json()
        assert "NaN" not in text
        assert LayerProfile.from_dict(json.loads(text)) == one


@pytest.mark.parametrize(
    ("error", "match", "texts", "given"),
    [
        (UsageError, "no texts to analyze", None, {}),
        (DataError, "too few", ["a cat", "a dog", "a cat"], {}),
        (UsageError, "in memory", TEXTS, {"settings": AnalysisSettings(kernel="rbf", streamed=True)}),
        (DataError, "two different scores", None, {"pairs": [TextPair(text, TEXTS[0], 1.0) for text in TEXTS]}),
    ],
)
def test_what_cannot_be_analysed(error, match, texts, given, encoder):
    with pytest.raises(error, match=match):
        profile(encoder, texts, **given)


def test_nothing_is_foretold_from_pairs_that_are_only_labelled(encoder):
    labelled = [
        TextPair(first, second, float(place % 2)) for place, (first, second) in enumerate(itertools.pairwise(TEXTS))
    ]
    found = profile(encoder, pairs=labelled)
    assert found.labels
    assert found.drop is None
    assert found.spearman is not None
    graded = [labelled[0], *(TextPair(pair.first, pair.second, pair.target / 2) for pair in labelled[1:])]
    assert profile(encoder, pairs=graded).drop is not None


@pytest.mark.parametrize(("number", "counts"), [(20, False), (21, True)])  # one of the first 20 is repeated
def test_scores_of_few_pairs_predict_nothing(shared_data, number, counts):
    encoder = load_encoder("mini-bert")
    some = read_pairs(shared_data / "stsb/en/test.csv", scale=(0, 5))
    found = profile(encoder, pairs=replace(some, pairs=some.pairs[:number]))
    assert (found.drop.probability is not None) == counts
    assert any("Spearman" in name for name in found.drop.signs) == counts


def test_repeats_and_handfuls_of_texts_change_what_is_measured(encoder):
    once, repeated = profile(encoder, TEXTS), profile(encoder, TEXTS + TEXTS[:25])
    assert (repeated.num_texts, repeated.num_repeats) == (60, 25)
    assert (repeated.cka, repeated.anisotropy) == (once.cka, once.anisotropy)
    wide = profile(encoder, TEXTS, settings=AnalysisSettings(level=0.99)).cka
    assert wide.high[3] - wide.low[3] > once.cka.high[3] - once.cka.low[3]
    assert profile(encoder, TEXTS[:12]).cka.low is None
