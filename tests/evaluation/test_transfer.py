"""The transfer suite equals plain loops over scikit-learn, and looks at nothing it must not see."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedShuffleSplit

from tests.support.classification import SMALL, fit_and_score, plain_divisions, sentences
from truncate_kit.data import LabelledSet
from truncate_kit.errors import DataError, ModelError, UsageError
from truncate_kit.evaluation.classifiers import (
    Task,
    accuracies,
    baselines,
    choose_layers,
    error_reduction,
    run_transfer,
    score_transfer,
)
from truncate_kit.evaluation.registry import SuiteRun
from truncate_kit.evaluation.transfer import TransferReport, TransferSettings, TransferSplit
from truncate_kit.models import load_encoder, load_pooler_head
from truncate_kit.models.states import layer_states
from truncate_kit.training.store import RunStore


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
    assert score.whole.as_is == pytest.approx(expected)
    assert (score.whole.last, score.whole.combined, score.whole.chosen, report.num_subsets) == (None, None, None, 0)
    assert score.majority == pytest.approx(100 * max(labels.mean(), 1 - labels.mean()))
    assert (score.whole.train_rows, score.whole.test_rows) == (136, 24)
    assert report.mean_as_is == pytest.approx(np.mean(expected))
    assert report.mean_relative_error_reduction is None


def test_a_model_with_layers_on_pairs(pairs, encoder):
    report = score_transfer(encoder, [pairs], model="tiny", settings=SMALL)
    labels, point = np.array(pairs.labels), report.sets[0].whole
    left, right = (layer_states(encoder, texts).numpy() for texts in (pairs.first, pairs.second))
    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        subsets = [(3,), (0, 1, 2, 3), point.chosen[number]]
        for found, layers in zip((point.last, point.last_four, point.combined), subsets, strict=True):
            values = pair_features(left[list(layers)].mean(axis=0), right[list(layers)].mean(axis=0))
            assert found[number] == pytest.approx(fit_and_score(values, labels, train, test), abs=1e-6)
        of_any = [
            fit_and_score(
                pair_features(left[list(some)].mean(axis=0), right[list(some)].mean(axis=0)), labels, train, test
            )
            for size in (1, 2, 3)
            for some in combinations(range(4), size)
        ]
        assert any(point.random[number] == pytest.approx(one, abs=1e-6) for one in of_any)
    assert point.as_is == point.last  # a bare model: its vector is the mean state of the last layer
    assert report.num_subsets == 14  # of four layers, up to three
    assert point.relative_error_reduction == pytest.approx(
        100 * ((100 - point.mean_last) - (100 - point.mean_combined)) / (100 - point.mean_last)
    )
    assert TransferReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("form", ["single", "pair"])
def test_means_through_the_trained_pooler_beside_the_pooler_itself(form, words, pairs, encoder, tiny_folder):
    """SimCSE's pipeline in BERT-LC: tanh(W · mean + b); its baseline is the same of the last layer's first token."""
    one, pooler = (words, pairs)[form == "pair"], load_pooler_head(tiny_folder("bert"))
    weight, bias = (value.detach().numpy() for value in (pooler.linear.weight, pooler.linear.bias))
    plain = score_transfer(encoder, [one], model="tiny", settings=SMALL, pooler=pooler).sets[0].whole
    assert plain.last == score_transfer(encoder, [one], model="tiny", settings=SMALL).sets[0].whole.last
    report = score_transfer(encoder, [one], model="tiny", settings=replace(SMALL, head=True), pooler=pooler)
    point, labels = report.sets[0].whole, np.array(one.labels)
    assert point.cls == plain.cls
    sides = (one.first,) if one.second is None else (one.first, one.second)

    def features(pooling, layers):
        states = [layer_states(encoder, texts, pooling=pooling).numpy()[list(layers)].mean(axis=0) for texts in sides]
        values = [np.tanh(part @ weight.T + bias) for part in states]
        return values[0] if len(values) == 1 else pair_features(*values)

    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        for found, pooling, layers in (
            (point.cls, "cls", (3,)),
            (point.last, "mean", (3,)),
            (point.last_four, "mean", (0, 1, 2, 3)),
            (point.combined, "mean", point.chosen[number]),
        ):
            expected = fit_and_score(features(pooling, layers), labels, train, test)
            assert found[number] == pytest.approx(expected, abs=100 / len(test) + 1e-6)  # one row at a threshold
    assert report.mean_cls == pytest.approx(np.mean(point.cls))
    assert any("goes through the trained pooler" in sentence for sentence in report.sentences())


def test_a_head_needs_a_pooler_and_layers(words, encoder, tiny_folder):
    settings, pooler = replace(SMALL, head=True), load_pooler_head(tiny_folder("bert"))
    for model, head in ((encoder, None), (VectorsOnly(encoder), pooler)):
        with pytest.raises(ModelError, match="without a pooler head"):
            score_transfer(model, [words], model="tiny", settings=settings, pooler=head)


def test_a_run_that_measured_less_covers_none_that_measured_more(words, pairs, encoder):
    whole = score_transfer(encoder, [words, pairs], model="tiny", settings=replace(SMALL, fractions=(0.5, 1.0)))
    one, two = whole.sets

    def with_points(**values):
        return replace(whole, sets=(replace(one, curve=tuple(replace(row, **values) for row in one.curve)), two))

    less = [
        replace(whole, sets=(one,)),
        replace(whole, sets=(one, replace(two, curve=two.curve[1:]))),
        with_points(as_is=one.curve[0].as_is[1:]),
        with_points(train_rows=one.curve[0].train_rows - 1),
        with_points(combined=None, last=None),  # as of a graph, which gives one vector
    ]
    for report in less:
        assert whole.covers(report)
        assert not report.covers(whole)
    assert replace(whole, model="other", seconds=0.0).covers(whole)


def test_relative_error_reduction_as_in_the_paper():
    assert error_reduction(80.0, 85.0) == pytest.approx(25.0)  # 20 errors become 15
    assert error_reduction(85.0, 80.0) == pytest.approx(-100 / 3)
    assert error_reduction(100.0, 100.0) == 0.0


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


def test_the_choice_does_not_hang_on_rows_outside_the_training_part():
    task, states, labels = planted()
    rows = np.arange(0, 200, 2)
    settings = TransferSettings(inner_splits=3, max_layers=2)
    before = choose_layers(task, rows, settings, seed=0)
    others = np.arange(1, 200, 2)
    states[:, others] = np.random.default_rng(5).normal(size=states[:, others].shape) * 50
    changed = task_of(states, np.where(np.isin(np.arange(200), others), 1 - labels, labels))
    after = choose_layers(changed, rows, settings, seed=0)
    assert before == after


def test_baselines_are_the_last_layers_and_subsets_drawn_evenly(planted_task):
    settings = TransferSettings(max_layers=2)
    drawn = [baselines(planted_task, settings, seed) for seed in range(2000)]
    assert {(last, four) for last, four, _ in drawn} == {((5,), (2, 3, 4, 5))}
    counts = Counter(random for *_, random in drawn)
    assert set(counts) == {subset for size in (1, 2) for subset in combinations(range(6), size)}
    assert 50 < min(counts.values()) <= max(counts.values()) < 150  # of each of 21 about 95


def test_shares_of_the_training_rows(words, encoder):
    settings = TransferSettings(splits=2, inner_splits=2, max_layers=1, finalists=1, fractions=(1.0, 0.25))
    report = score_transfer(encoder, [words], model="tiny", settings=settings)
    curve = report.sets[0].curve
    assert [(point.fraction, point.train_rows, point.test_rows) for point in curve] == [(0.25, 34, 24), (1.0, 136, 24)]
    assert report.mean_combined == curve[1].mean_combined


def test_same_seed_same_result_and_fewer_rows_on_demand(words, encoder):
    settings = TransferSettings(splits=2, inner_splits=2, max_layers=2, finalists=1, max_rows=80)
    first, again = (score_transfer(encoder, [words], model="tiny", settings=settings) for _ in range(2))
    assert first.sets == again.sets
    assert (first.sets[0].num_rows, first.sets[0].whole.train_rows) == (80, 68)


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


def test_what_is_kept_is_taken_for_the_same_vectors_and_protocol_alone(words, encoder, tmp_path):
    def scored(settings=SMALL, one=words):
        report = score_transfer(VectorsOnly(encoder), [one], model="tiny", settings=settings, work=tmp_path)
        return report.sets[0].whole.as_is

    plain = scored()
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (tmp_path / "trials.jsonl").unlink()
    planted = TransferSplit(as_is=12.5)
    RunStore(tmp_path, folder.name).write("rows136-split1", planted)
    assert scored() == (plain[0], 12.5)
    assert scored(replace(SMALL, splits=3))[:2] == (plain[0], 12.5)  # the first divisions of more are the same ones
    for other in (replace(SMALL, penalty=10.5), replace(SMALL, seed=1)):
        assert 12.5 not in scored(other)
    others = [replace(words, labels=words.labels[::-1]), replace(words, first=words.first[::-1])]
    assert all(12.5 not in scored(one=other) for other in others)


def test_repeated_rows_are_counted(encoder):
    texts = sentences(60)
    doubled = LabelledSet(
        name="MPQA", first=(*texts, *texts[:7]), second=None, labels=(0, 1) * 33 + (0,), classes=("0", "1")
    )
    settings = TransferSettings(splits=1, inner_splits=2, max_layers=1, finalists=1)
    assert score_transfer(encoder, [doubled], model="tiny", settings=settings).sets[0].repeated_rows == 7


def test_a_class_too_small_for_its_share_is_drawn_at_random(encoder):
    """TREC's rarest class has 95 of 5,952 rows: of 1/256 of them one is left at the most."""
    texts = tuple(sentences(120))
    labels = (0,) * 60 + (1,) * 57 + (2,) * 3
    rare = LabelledSet(name="TREC", first=texts, second=None, labels=labels, classes=("a", "b", "c"))
    settings = replace(SMALL, fractions=(0.1, 1.0))
    report = score_transfer(encoder, [rare], model="tiny", settings=settings)
    few, whole = report.sets[0].curve
    assert (few.train_rows, few.by_class, whole.train_rows, whole.by_class) == (10, False, 102, True)
    assert all(0 <= score <= 100 for score in few.combined)
    (said,) = [sentence for sentence in report.sentences() if "too few" in sentence]
    assert "TREC, 10 rows" in said


def test_rows_of_one_class_alone_answer_with_it():
    labels = np.array([1, 1, 1, 0, 1])
    fit = (torch.randn(5, 3), np.array([0, 1, 2]), np.array([3, 4]))
    assert accuracies([fit], labels, SMALL) == [0.5]


def test_too_few_rows_to_train_on(words, encoder):
    settings = TransferSettings(splits=1, max_rows=9, fractions=(0.5,))
    with pytest.raises(DataError, match="MR leaves 4 rows to train on"):
        score_transfer(encoder, [words], model="tiny", settings=settings)


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
    assert report.mean_combined == pytest.approx((small.whole.mean_combined + whole.whole.mean_combined) / 2)
    assert ("TREC: splits", 2, 2) in seen
    assert sorted(map(len, kept_splits(tmp_path).values())) == [2, 4]
    assert TransferReport.from_dict(report.to_dict()) == report


def test_a_set_without_any_share_left_has_no_part_in_the_means(words, encoder):
    few = replace(words, name="TREC", first=words.first[:30], labels=words.labels[:30])
    settings = replace(SMALL, fractions=(0.1, 0.2))
    report = score_transfer(encoder, [few, words], model="tiny", settings=settings)
    assert settings.left_out(report.sets[0].num_rows) == [(0.1, 2), (0.2, 5)]
    assert report.sets[0].curve == ()
    assert report.mean_combined == report.sets[1].whole.mean_combined
    assert report.table().rows[-1][0] == "mean of 1"
    fewer = replace(few, name="MR", first=few.first[:9], labels=few.labels[:9])
    with pytest.raises(DataError, match="TREC leaves 5 rows to train on, and no other set more"):
        score_transfer(encoder, [fewer, few], model="tiny", settings=settings)


def test_the_command_says_before_it_starts_what_it_leaves_out(words, encoder, tmp_path):
    for name, count in (("mr", 160), ("trec", 30)):
        rows = [f"{text},{label}" for text, label in zip(words.first[:count], words.labels[:count], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    notes = []
    run = SuiteRun(
        encoder=VectorsOnly(encoder),
        model="tiny",
        runtime="torch",
        data=str(tmp_path),
        options={"fractions": (0.1, 1.0), "quick": True},
        note=notes.append,
    )
    report = run_transfer(run)
    assert notes == ["TREC leaves 2 rows to train on at 0.1 of them: left out."]
    assert [len(score.curve) for score in report.sets] == [2, 1]


def test_vectors_that_are_no_numbers(words):
    class Broken:
        def encode(self, texts):
            return torch.full((len(texts), 4), float("nan"))

    with pytest.raises(DataError, match="not numbers for 160 of 160 texts"):
        score_transfer(Broken(), [words], model="broken", settings=SMALL)


def test_settings_that_make_no_sense():
    for wrong in ({"fractions": (0.0, 1.0)}, {"fractions": ()}, {"splits": 0}, {"inner_splits": 0}, {"inner_share": 1}):
        with pytest.raises(UsageError):
            TransferSettings(**wrong)
