import pytest
import torch

from tests.support import cka as reference
from truncate_kit.analysis.cka import StreamedCKA, cka_matrix
from truncate_kit.core.errors import DataError, LayerOutOfRangeError, ModelError, UsageError

SIZES = [(260, 24, 20), (40, 90, 70), (520, 8, 12)]  # Gram form, more widths than texts, feature form
ESTIMATORS = ["debiased", "biased"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_matrix_equals_float64_gram_form(size, estimator, kernel):
    x, y = reference.related_states(*size)
    expected = reference.matrix(x, y, estimator=estimator, kernel=kernel)
    assert (cka_matrix(x, y, estimator=estimator, kernel=kernel) - expected).abs().max() < 3e-7
    double = cka_matrix(x.double(), y, estimator=estimator, kernel=kernel)
    assert (double - expected).abs().max() < 1e-10


@pytest.mark.parametrize("size", SIZES)
def test_model_with_itself(size):
    x, _ = reference.related_states(*size)
    found = cka_matrix(x)
    assert (found - reference.matrix(x, x)).abs().max() < 3e-7
    assert torch.equal(found, found.T)


def test_bandwidth_is_a_factor_of_the_median_distance():
    x, y = reference.related_states(50, 8, 6)
    expected = reference.matrix(x, y, kernel="rbf", bandwidth=0.4)
    assert (cka_matrix(x, y, kernel="rbf", bandwidth=0.4) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("batch", [1, 37, 300])
def test_streamed_equals_all_at_once(estimator, batch):
    x, y = reference.related_states(300, 24, 20)
    streamed = StreamedCKA(estimator=estimator)
    for part in range(0, 300, batch):
        streamed.update(x[:, part : part + batch], y[:, part : part + batch])
    assert (streamed.result() - reference.matrix(x, y, estimator=estimator)).abs().max() < 3e-7


def test_streamed_over_several_buffers_with_a_first_batch_unlike_the_rest():
    x, y = reference.related_states(5000, 6, 5)
    order = x[0, :, 0].argsort()  # the shift is then far from the mean
    x, y = x[:, order], y[:, order]
    streamed = StreamedCKA()
    for part in range(0, 5000, 700):
        streamed.update(x[:, part : part + 700], y[:, part : part + 700])
    assert streamed.count == 5000
    assert (streamed.result() - cka_matrix(x.double(), y.double())).abs().max() < 3e-7


def test_streamed_pairs_and_itself():
    x, _ = reference.related_states(200, 12, 9)
    whole, some = StreamedCKA(), StreamedCKA(pairs=[(0, 3), (2, 1)])
    for part in range(0, 200, 64):
        whole.update(x[:, part : part + 64])
        some.update(x[:, part : part + 64])
    expected = reference.matrix(x, x)
    assert (whole.result() - expected).abs().max() < 3e-7
    assert (some.result() - expected[[0, 2], [3, 1]]).abs().max() < 3e-7


def test_debiased_cka_of_independent_states_is_near_zero_and_biased_is_not():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1, 100, 400, generator=generator), torch.randn(1, 100, 400, generator=generator)
    assert abs(cka_matrix(x, y).item()) < 0.05
    assert cka_matrix(x, y, estimator="biased").item() > 0.7


@pytest.mark.parametrize("form", ["memory", "streamed"])
def test_constant_layer_is_named_not_nan(form):
    x, y = reference.related_states(50, 8, 6)
    x[0] = x[0, :1] * (1 + 1e-7 * torch.randn(50, 1))

    def run(**options):
        if form == "memory":
            return cka_matrix(x, y, **options)
        streamed = StreamedCKA()
        streamed.update(x[:, :20], y[:, :20])
        streamed.update(x[:, 20:], y[:, 20:])
        return streamed.result(**options)

    with pytest.raises(DataError, match=r"layer 0 of the model: .*same for every text"):
        run()
    found = run(undefined="nan")
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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_states_of_any_magnitude_are_the_same(size, kernel):
    x, y = reference.related_states(*size)
    tiny, huge = x * 2.0**-100, y * 2.0**90  # in float32, whose squares would be 0 and infinite
    assert torch.equal(cka_matrix(tiny, huge, kernel=kernel), cka_matrix(x, y, kernel=kernel))
    if kernel == "linear":
        streams = StreamedCKA(), StreamedCKA()
        for stream, models in zip(streams, ((tiny, huge), (x, y)), strict=True):
            for start in range(0, len(x[0]), 7):
                stream.update(*(model[:, start : start + 7] for model in models))
        assert torch.equal(streams[0].result(), streams[1].result())


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
        (UsageError, "first one", lambda x, y: streamed((x, y), (x[:2], y))),
        (LayerOutOfRangeError, "9", lambda x, y: StreamedCKA(pairs=[(0, 9)]).update(x, y)),
        (ModelError, "layer 1", lambda x, y: cka_matrix(x.index_fill(0, torch.tensor([1]), torch.nan), y)),
        (ModelError, "layer 1", lambda x, y: streamed((x.index_fill(0, torch.tensor([1]), torch.nan), y))),
    ],
)
def test_states_that_cannot_be_compared(error, match, call):
    with pytest.raises(error, match=match):
        call(*reference.related_states(20, 8, 6))


def streamed(*batches, **options):
    sums = StreamedCKA(**options)
    for batch in batches:
        sums.update(*batch)
    return sums.result()
