import pytest
import torch

from tests.support import cka as reference
from truncate_kit.analysis.cka import StreamedCKA, cka_matrix
from truncate_kit.core.errors import DataError, ModelError, UsageError

SIZES = [(260, 24, 20), (40, 90, 70), (520, 8, 12)]  # Gram form, more widths than texts, feature form
ESTIMATORS = ["debiased", "biased"]


@pytest.mark.parametrize(("size", "kernel"), [*((size, "linear") for size in SIZES), (SIZES[0], "rbf")])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_matrix_equals_float64_gram_form(size, estimator, kernel):
    x, y = reference.related_states(*size)
    expected = reference.matrix(x, y, estimator=estimator, kernel=kernel)
    assert (cka_matrix(x, y, estimator=estimator, kernel=kernel) - expected).abs().max() < 3e-7
    double = cka_matrix(x.double(), y, estimator=estimator, kernel=kernel)
    assert (double - expected).abs().max() < 1e-10
    itself = cka_matrix(x, estimator=estimator, kernel=kernel)
    assert (itself - reference.matrix(x, x, estimator=estimator, kernel=kernel)).abs().max() < 3e-7
    assert torch.equal(itself, itself.T)


def test_bandwidth_is_a_factor_of_the_median_distance():
    x, y = reference.related_states(50, 8, 6)
    expected = reference.matrix(x, y, kernel="rbf", bandwidth=0.4)
    assert (cka_matrix(x, y, kernel="rbf", bandwidth=0.4) - expected).abs().max() < 1e-10


def streamed(*models, batch=64, undefined="raise", **options):
    sums = StreamedCKA(**options)
    for parts in zip(*(model.split(batch, 1) for model in models), strict=True):
        sums.update(*parts)
    return sums.result(undefined=undefined)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("batch", [1, 37, 300])
def test_streamed_equals_all_at_once(estimator, batch):
    x, y = reference.related_states(300, 24, 20)
    expected, itself = (reference.matrix(x, other, estimator=estimator) for other in (y, x))
    assert (streamed(x, y, batch=batch, estimator=estimator) - expected).abs().max() < 3e-7
    assert (streamed(x, batch=batch, estimator=estimator) - itself).abs().max() < 5e-7
    some = streamed(x, batch=batch, estimator=estimator, pairs=[(0, 3), (2, 1)])
    assert (some - itself[[0, 2], [3, 1]]).abs().max() < 5e-7


def test_streamed_over_several_buffers_with_a_first_batch_unlike_the_rest():
    x, y = reference.related_states(5000, 6, 5)
    order = x[0, :, 0].argsort()  # the shift is then far from the mean
    x, y = x[:, order], y[:, order]
    assert (streamed(x, y, batch=700) - cka_matrix(x.double(), y.double())).abs().max() < 3e-7


@pytest.mark.parametrize("form", ["memory", "streamed"])
def test_constant_layer_is_named_not_nan(form):
    x, y = reference.related_states(50, 8, 6)
    x[0] = x[0, :1] * (1 + 1e-7 * torch.randn(50, 1))

    run = {"memory": cka_matrix, "streamed": streamed}[form]
    with pytest.raises(DataError, match=r"layer 0 of the model: .*same for every text"):
        run(x, y)
    found = run(x, y, undefined="nan")
    assert found[0].isnan().all()
    assert (found[1:] - reference.matrix(x[1:], y)).abs().max() < 1e-6


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("same", [30, 25])
def test_rbf_of_a_layer_in_which_most_texts_are_the_same_is_named_not_nan(estimator, same):
    x, y = reference.related_states(30, 8, 6)
    x[1, :same] = x[1, 0]
    with pytest.raises(DataError, match=r"not defined at layer 1 of the model: .*most texts, under the RBF kernel"):
        cka_matrix(x, y, kernel="rbf", estimator=estimator)
    found = cka_matrix(x, y, kernel="rbf", estimator=estimator, undefined="nan")
    assert found.isnan().any(1).tolist() == [False, True, *[False] * (len(x) - 2)]


@pytest.mark.parametrize(("size", "kernel"), [*((size, "linear") for size in SIZES), (SIZES[1], "rbf")])
def test_states_of_any_magnitude_are_the_same(size, kernel):
    x, y = reference.related_states(*size)
    tiny, huge = x * 2.0**-100, y * 2.0**90  # in float32, whose squares would be 0 and infinite
    assert torch.equal(cka_matrix(tiny, huge, kernel=kernel), cka_matrix(x, y, kernel=kernel))
    if kernel == "linear":
        assert torch.equal(streamed(tiny, huge, batch=7), streamed(x, y, batch=7))


def test_negative_hsic_between_layers_gives_a_negative_value_not_nan():
    draws = (torch.randn(2, 1, 6, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(50))
    x, y = next(pair for pair in draws if reference.cka(pair[0][0], pair[1][0]) < -0.2)
    assert cka_matrix(x, y).item() == pytest.approx(float(reference.cka(x[0], y[0])), abs=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_equidistant_states_are_an_error_not_rounding_noise(kernel):
    with pytest.raises(DataError, match="equally far apart"):
        cka_matrix(torch.eye(12)[None], kernel=kernel)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (DataError, "too few", lambda x, y: cka_matrix(x[:, :3], y[:, :3])),
        (DataError, "too few", lambda x, y: StreamedCKA().result()),
        (UsageError, "20 and 19 texts", lambda x, y: cka_matrix(x, y[:, :19])),
        (UsageError, "shape", lambda x, y: cka_matrix(x[0])),
        (UsageError, "estimator", lambda x, y: cka_matrix(x, y, estimator="unbiased")),
        (UsageError, "kernel", lambda x, y: cka_matrix(x, y, kernel="cosine")),
        (ModelError, "layer 1", lambda x, y: cka_matrix(x.index_fill(0, torch.tensor([1]), torch.nan), y)),
        (ModelError, "layer 1", lambda x, y: streamed(x.index_fill(0, torch.tensor([1]), torch.nan), y)),
    ],
)
def test_states_that_cannot_be_compared(error, match, call):
    with pytest.raises(error, match=match):
        call(*reference.related_states(20, 8, 6))
