"""The transfer suite equals plain loops over scikit-learn, and looks at nothing it must not see."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedShuffleSplit

from tests.support.classification import SMALL, fit_and_score, plain_divisions, sentences
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.suites import LabelledSet
from truncate_kit.evaluation.classifiers import (
    Task,
    accuracies,
    baselines,
    choose_layers,
    score_transfer,
)
from truncate_kit.evaluation.transfer import TransferReport, TransferSettings, TransferSplit
from truncate_kit.models.loading import find_pooler_head, load_encoder
from truncate_kit.models.store import RunStore
from truncate_kit.models.truncation import layer_states


@pytest.fixture(scope="module")
def words():
    """Sentences whose class is whether they speak of a cat or a dog more often."""
    texts = sentences(160)
    labels = tuple(int(text.split().count("cat") > text.split().count("dog")) for text in texts)
    return LabelledSet(name="MR", first=tuple(texts), second=None, labels=labels, classes=("dog", "cat"))


@pytest.fixture(scope="module")
def pairs():
    """Pairs whose class is whether both speak of the same colour."""
    first, second = sentences(140, 1), sentences(140, 2)
    labels = tuple(int(("red" in a) == ("red" in b)) for a, b in zip(first, second, strict=True))
    return LabelledSet(name="MRPC", first=tuple(first), second=tuple(second), labels=labels, classes=("0", "1"))


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return load_encoder(tiny_folder("bert"))


class VectorsOnly:
    """The same vectors from something that has no layers to show."""

    def __init__(self, encoder):
        self.encode = encoder.encode


def pair_features(left, right):
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def test_a_vector_model_on_single_texts(words, encoder):
    report = score_transfer(VectorsOnly(encoder), [words], model="tiny", settings=SMALL)
    values, labels = encoder.vectors(words.first).numpy(), np.array(words.labels)
    expected = [fit_and_score(values, labels, train, test) for train, test in plain_divisions(labels, 2)]
    (score,) = report.sets
    assert score.whole.splits == tuple(TransferSplit(as_is=pytest.approx(one)) for one in expected)
    assert (score.whole.mean("last"), report.num_subsets) == (None, 0)
    assert score.majority == pytest.approx(100 * max(labels.mean(), 1 - labels.mean()))
    assert (score.whole.train_rows, score.whole.test_rows) == (136, 24)
    assert report.mean_as_is == pytest.approx(np.mean(expected))
    assert report.mean_relative_error_reduction is None


def test_a_model_with_layers_on_pairs(pairs, encoder):
    report = score_transfer(encoder, [pairs], model="tiny", settings=SMALL)
    labels, point = np.array(pairs.labels), report.sets[0].whole
    left, right = (layer_states(encoder, texts).numpy() for texts in (pairs.first, pairs.second))
    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        split = point.splits[number]
        subsets = [(3,), (0, 1, 2, 3), split.chosen]
        for found, layers in zip((split.last, split.last_four, split.combined), subsets, strict=True):
            values = pair_features(left[list(layers)].mean(axis=0), right[list(layers)].mean(axis=0))
            assert found == pytest.approx(fit_and_score(values, labels, train, test), abs=1e-6)
        of_any = [
            fit_and_score(
                pair_features(left[list(some)].mean(axis=0), right[list(some)].mean(axis=0)), labels, train, test
            )
            for size in (1, 2, 3)
            for some in combinations(range(4), size)
        ]
        assert any(split.random == pytest.approx(one, abs=1e-6) for one in of_any)
        assert split.as_is == split.last  # a bare model: its vector is the mean state of the last layer
    assert report.num_subsets == 14  # of four layers, up to three
    before, after = (100 - np.mean([getattr(split, kind) for split in point.splits]) for kind in ("last", "combined"))
    assert point.relative_error_reduction == pytest.approx(100 * (before - after) / before)
    assert report.mean_relative_error_reduction == point.relative_error_reduction
    assert TransferReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("form", ["single", "pair"])
def test_means_through_the_trained_pooler_beside_the_pooler_itself(form, words, pairs, encoder, tiny_folder):
    """SimCSE's pipeline in BERT-LC: tanh(W · mean + b); its baseline is the same of the last layer's first token."""
    one, pooler = (words, pairs)[form == "pair"], find_pooler_head(tiny_folder("bert"), required=True)
    weight, bias = (value.detach().numpy() for value in (pooler.linear.weight, pooler.linear.bias))
    plain = score_transfer(encoder, [one], model="tiny", settings=SMALL, pooler=pooler).sets[0].whole
    without = score_transfer(encoder, [one], model="tiny", settings=SMALL).sets[0].whole
    assert plain.splits == tuple(
        replace(bare, cls=split.cls) for bare, split in zip(without.splits, plain.splits, strict=True)
    )
    report = score_transfer(encoder, [one], model="tiny", settings=replace(SMALL, head=True), pooler=pooler)
    point, labels = report.sets[0].whole, np.array(one.labels)
    assert point.mean("cls") == plain.mean("cls")
    sides = (one.first,) if one.second is None else (one.first, one.second)

    def features(pooling, layers):
        states = [layer_states(encoder, texts, pooling=pooling).numpy()[list(layers)].mean(axis=0) for texts in sides]
        values = [np.tanh(part @ weight.T + bias) for part in states]
        return values[0] if len(values) == 1 else pair_features(*values)

    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        split = point.splits[number]
        for found, pooling, layers in (
            (split.cls, "cls", (3,)),
            (split.last, "mean", (3,)),
            (split.last_four, "mean", (0, 1, 2, 3)),
            (split.combined, "mean", split.chosen),
        ):
            expected = fit_and_score(features(pooling, layers), labels, train, test)
            assert found == pytest.approx(expected, abs=100 / len(test) + 1e-6)  # one row at a threshold
    assert report.mean_cls == pytest.approx(np.mean([split.cls for split in point.splits]))


def planted(seed=0, rows=200, layers=4, width=6):
    """States of which layers 1 and 2 together tell the class; what each of them adds is noise of its own."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(2, size=rows)
    states = drawn.normal(size=(layers, rows, width)).astype(np.float32)
    noise = drawn.normal(size=(rows, width)).astype(np.float32) * 3
    states[1] += noise + labels[:, None]
    states[2] += labels[:, None] - noise
    return task_of(states, labels), states, labels


def task_of(states, labels):
    found = torch.from_numpy(states)
    return Task(labels=labels, as_is=found[-1], first=torch.arange(len(labels)), states=found, small=found.double())


@pytest.fixture(scope="module")
def planted_task():
    return planted(layers=6)[0]


@pytest.mark.parametrize("finalists", [3, 14])
def test_the_choice_is_that_of_exact_cross_validation(finalists):
    task, states, labels = planted()
    settings = TransferSettings(inner_splits=4, max_layers=3, finalists=finalists)
    rows = np.flatnonzero(np.random.default_rng(1).random(200) < 0.8)
    folds = list(StratifiedShuffleSplit(4, test_size=0.18, random_state=7).split(rows, labels[rows]))
    subsets = [subset for size in (1, 2, 3) for subset in combinations(range(4), size)]
    exact = {
        subset: np.mean([fit_and_score(states[list(subset)].mean(axis=0), labels, rows[a], rows[b]) for a, b in folds])
        for subset in subsets
    }
    assert max(exact, key=exact.get) == (1, 2)  # what was planted
    assert choose_layers(task, rows, settings, seed=7) == (1, 2)


def test_baselines_are_the_last_layers_and_subsets_drawn_evenly(planted_task):
    settings = TransferSettings(max_layers=2)
    drawn = [baselines(planted_task, settings, seed) for seed in range(2000)]
    assert {(last, four) for last, four, _ in drawn} == {((5,), (2, 3, 4, 5))}
    counts = Counter(random for *_, random in drawn)
    assert set(counts) == {subset for size in (1, 2) for subset in combinations(range(6), size)}
    assert 50 < min(counts.values()) <= max(counts.values()) < 150  # of each of 21 about 95


def kept_splits(work):
    """Names of the divisions that are kept, by the folders of their sets."""
    folders = [path.name for path in work.iterdir() if path.is_dir()]
    return {folder: list(RunStore(work, folder).all(TransferSplit)) for folder in folders}


@pytest.mark.parametrize("layers", [True, False])
def test_interrupted_it_goes_on_and_ends_as_if_it_had_not_been(words, pairs, encoder, tmp_path, layers):
    model, settings = encoder if layers else VectorsOnly(encoder), replace(SMALL, fractions=(0.5, 1.0))

    def scored(progress=False, work=tmp_path / "trials"):
        return score_transfer(model, [words, pairs], model="tiny", settings=settings, work=work, progress=progress)

    def interrupting(task, done, total):
        if task == "MRPC: splits" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(interrupting)
    of_half, of_all = ([f"rows{rows}-split{number}" for number in range(2)] for rows in (68, 136))
    assert sorted(kept_splits(tmp_path / "trials").values()) == [
        ["rows60-split0", "rows60-split1", "rows119-split0"],
        [*of_half, *of_all],
    ]
    assert scored().sets == scored(work=None).sets
    before = (tmp_path / "trials/trials.jsonl").read_bytes()
    scored()
    assert (tmp_path / "trials/trials.jsonl").read_bytes() == before


def test_a_class_too_small_for_its_share_is_drawn_at_random(encoder):
    """TREC's rarest class has 95 of 5,952 rows: of 1/256 of them one is left at the most."""
    texts = tuple(sentences(120))
    labels = (0,) * 60 + (1,) * 57 + (2,) * 3
    rare = LabelledSet(name="TREC", first=texts, second=None, labels=labels, classes=("a", "b", "c"))
    settings = replace(SMALL, fractions=(0.1, 1.0))
    report = score_transfer(encoder, [rare], model="tiny", settings=settings)
    few, whole = report.sets[0].curve
    assert (few.train_rows, few.by_class, whole.train_rows, whole.by_class) == (10, False, 102, True)
    assert all(0 <= score <= 100 for score in (split.combined for split in few.splits))


def test_rows_of_one_class_alone_answer_with_it():
    labels = np.array([1, 1, 1, 0, 1])
    fit = (torch.randn(5, 3), np.array([0, 1, 2]), np.array([3, 4]))
    assert accuracies([fit], labels, SMALL) == [0.5]


def test_a_share_with_too_few_rows_is_left_out_of_its_set_alone(words, encoder, tmp_path):
    few = replace(words, name="TREC", first=words.first[:30], labels=words.labels[:30])
    settings, seen = replace(SMALL, fractions=(1.0, 0.1)), []
    report = score_transfer(
        encoder,
        [few, words],
        model="tiny",
        settings=settings,
        work=tmp_path,
        progress=lambda task, done, total: seen.append((task, done, total)),
    )
    small, whole = report.sets
    assert settings.left_out(small.num_rows) == [(0.1, 2)]  # a tenth of 25
    assert [(point.fraction, point.train_rows) for point in small.curve] == [(1.0, 25)]
    assert [point.fraction for point in whole.curve] == [0.1, 1.0]
    assert whole == score_transfer(encoder, [words], model="tiny", settings=settings).sets[0]
    assert report.mean_combined == pytest.approx((small.whole.mean("combined") + whole.whole.mean("combined")) / 2)
    assert ("TREC: splits", 2, 2) in seen
    assert sorted(map(len, kept_splits(tmp_path).values())) == [2, 4]
    assert TransferReport.from_dict(report.to_dict()) == report


def test_what_cannot_be_scored(words, encoder):
    few = replace(words, name="TREC", first=words.first[:9], labels=words.labels[:9])
    with pytest.raises(DataError, match="TREC leaves 4 rows to train on"):
        score_transfer(encoder, [few], model="tiny", settings=replace(SMALL, fractions=(0.5,)))
    for wrong in ({"fractions": (0.0, 1.0)}, {"fractions": ()}, {"splits": 0}, {"inner_splits": 0}, {"inner_share": 1}):
        with pytest.raises(UsageError):
            TransferSettings(**wrong)
