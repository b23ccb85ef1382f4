"""The transfer suite equals plain loops over scikit-learn, which never fit on test rows."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from tests.support.classification import SMALL, fit_and_score, plain_divisions, sentences
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.evaluation import Score, SuiteReport
from truncate_kit.evaluation.transfer import (
    RIDGE,
    WIDTH,
    Task,
    TransferSettings,
    _small,
    accuracies,
    choose_layers,
    ridge_accuracies,
    score_transfer,
)
from truncate_kit.methods.bert_lc.combine import combined_encoder
from truncate_kit.models.loading import find_pooler_head
from truncate_kit.models.store import RunStore
from truncate_kit.models.truncation import layer_states


@pytest.fixture(scope="module")
def words():
    """Sentences whose class is whether they speak of a cat or a dog more often."""
    texts = sentences(160)
    labels = tuple(int(text.split().count("cat") > text.split().count("dog")) for text in texts)
    return labelled("MR", texts, [""] * 160, labels)


@pytest.fixture(scope="module")
def pairs():
    """Pairs whose class is whether both speak of the same colour."""
    first, second = sentences(140, 1), sentences(140, 2)
    labels = tuple(int(("red" in a) == ("red" in b)) for a, b in zip(first, second, strict=True))
    return labelled("MRPC", first, second, labels)


def labelled(name, *columns):
    pairs = tuple(map(TextPair, *columns))
    return PairSet(name=name, pairs=pairs, scale=(0, 1), classes=("no", "yes"))


def firsts(data):
    return [pair.first for pair in data]


class VectorsOnly:
    """The same vectors from an encoder without layers."""

    def __init__(self, encoder):
        self.encode = encoder.encode


def pair_features(left, right):
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def test_a_vector_model_on_single_texts(words, encoder):
    report = score_transfer(VectorsOnly(encoder), [words], model="tiny", settings=SMALL)
    values, labels = encoder.vectors(firsts(words)).numpy(), np.array(words.scores())
    expected = [fit_and_score(values, labels, train, test) for train, test in plain_divisions(labels, 2)]
    (row,) = report.rows
    majority = 100 * max(labels.mean(), 1 - labels.mean())
    assert row.values == {
        "rows to train on": 136, "classes": 2, "most frequent": pytest.approx(majority),
        "as it is": pytest.approx(np.mean(expected)),
    }  # fmt: skip
    assert (row.size, row.remark) == ((2, 136, 24, 1), "")
    assert report.means == {name: row.values[name] for name in ("most frequent", "as it is")}
    assert not any("subsets" in note for note in report.notes)


def kept_splits(work):
    """Scores of the divisions that are kept, by the folders of their sets."""
    folders = [path.name for path in work.iterdir() if path.is_dir()]
    return {folder: RunStore(work, folder).all(Score) for folder in folders}


def splits_of(work):
    (splits,) = kept_splits(work).values()
    return list(splits.values())


def chosen(split):
    return tuple(map(int, split.labels["layers"].split()))


def test_a_model_with_layers_on_pairs(pairs, encoder, tmp_path):
    report = score_transfer(encoder, [pairs], model="tiny", settings=SMALL, work=tmp_path)
    labels, (point,), splits = np.array(pairs.scores()), report.rows, splits_of(tmp_path)
    left, right = (
        layer_states(encoder, texts).numpy()
        for texts in zip(*((pair.first, pair.second) for pair in pairs), strict=True)
    )

    def features(layers):
        return pair_features(*(states[list(layers)].mean(axis=0) for states in (left, right)))

    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        split = splits[number].values
        subsets = {"last layer": (3,), "last four": (0, 1, 2, 3), "layers combined": chosen(splits[number])}
        for kind, layers in subsets.items():
            assert split[kind] == pytest.approx(fit_and_score(features(layers), labels, train, test), abs=1e-6)
        every = (layers for size in (1, 2, 3) for layers in combinations(range(4), size))
        of_any = [fit_and_score(features(layers), labels, train, test) for layers in every]
        assert any(split["random layers"] == pytest.approx(one, abs=1e-6) for one in of_any)
        assert split["as it is"] == split["last layer"]  # a bare model: its vector is the mean state of the last layer
    assert any("among 14 subsets of up to 3 layers" in note for note in report.notes)
    before, after = (
        100 - np.mean([split.values[kind] for split in splits]) for kind in ("last layer", "layers combined")
    )
    assert point.values["fewer errors %"] == pytest.approx(100 * (before - after) / before)
    assert report.means["fewer errors %"] == point.values["fewer errors %"]
    often = [layer for layer in range(4) if sum(layer in chosen(split) for split in splits) * 2 >= len(splits)]
    assert point.remark == f"mostly layers {', '.join(map(str, often))}"
    assert point.parts == tuple(splits)
    assert SuiteReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("form", ["single", "pair"])
def test_means_through_the_trained_pooler_beside_the_pooler_itself(form, words, pairs, encoder, tiny_folder, tmp_path):
    """SimCSE's pipeline in BERT-LC: tanh(W · mean + b); its baseline is the same of the last layer's first token."""
    one, pooler = (words, pairs)[form == "pair"], find_pooler_head(tiny_folder("bert"))
    weight, bias = (value.detach().numpy() for value in (pooler.linear.weight, pooler.linear.bias))
    (plain,) = score_transfer(encoder, [one], model="tiny", settings=SMALL, pooler=pooler).rows
    (without,) = score_transfer(encoder, [one], model="tiny", settings=SMALL).rows
    cls = plain.values["CLS pooler"]
    assert plain.values == without.values | {"CLS pooler": cls}
    head = replace(SMALL, head=True)
    report = score_transfer(encoder, [one], model="tiny", settings=head, pooler=pooler, work=tmp_path)
    labels, splits = np.array(one.scores()), splits_of(tmp_path)
    assert report.means["CLS pooler"] == cls == pytest.approx(np.mean([split.values["CLS pooler"] for split in splits]))
    sides = [[getattr(pair, side) for pair in one] for side in ("first", "second")[: 2 if form == "pair" else 1]]

    def features(pooling, layers):
        states = [layer_states(encoder, texts, pooling=pooling).numpy()[list(layers)].mean(axis=0) for texts in sides]
        values = [np.tanh(part @ weight.T + bias) for part in states]
        return values[0] if len(values) == 1 else pair_features(*values)

    for number, (train, test) in enumerate(plain_divisions(labels, 2)):
        for kind, pooling, layers in (
            ("CLS pooler", "cls", (3,)),
            ("last layer", "mean", (3,)),
            ("last four", "mean", (0, 1, 2, 3)),
            ("layers combined", "mean", chosen(splits[number])),
        ):
            expected = fit_and_score(features(pooling, layers), labels, train, test)
            # One row lies at a threshold.
            assert splits[number].values[kind] == pytest.approx(expected, abs=100 / len(test) + 1e-6)


def test_accuracies_of_a_combination(encoder, words):
    (point,) = score_transfer(combined_encoder(encoder, (0, 1)), [words], model="tiny", settings=SMALL).rows
    values, labels = layer_states(encoder, firsts(words)), np.array(words.scores())
    for kind, features in (("as it is", values[:2].mean(dim=0)), ("last layer", values[1])):
        expected = [fit_and_score(features.numpy(), labels, *division) for division in plain_divisions(labels, 2)]
        assert point.values[kind] == pytest.approx(np.mean(expected))


def planted(seed=0, rows=200, layers=4, width=6):
    """Return states and classes; only the mean of layers 1 and 2, whose noise cancels, tells the class."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(2, size=rows)
    states = drawn.normal(size=(layers, rows, width)).astype(np.float32)
    noise = drawn.normal(size=(rows, width)).astype(np.float32) * 3
    states[1] += noise + labels[:, None]
    states[2] += labels[:, None] - noise
    return states, labels


class Planted(Task):
    def __init__(self, states, labels, largest):
        self.labels, self.states, self.sides = labels, torch.from_numpy(states), [torch.arange(len(labels))]
        self.small = self.states.double()
        self.subsets = [some for size in range(1, largest + 1) for some in combinations(range(len(states)), size)]


@pytest.mark.parametrize("finalists", [3, 14])
def test_the_choice_is_that_of_exact_cross_validation(finalists):
    states, labels = planted()
    settings, task = TransferSettings(inner_splits=4, finalists=finalists), Planted(states, labels, 3)
    rows = np.flatnonzero(np.random.default_rng(1).random(200) < 0.8)
    folds = list(StratifiedShuffleSplit(4, test_size=0.18, random_state=7).split(rows, labels[rows]))
    exact = {
        subset: np.mean([fit_and_score(states[list(subset)].mean(axis=0), labels, rows[a], rows[b]) for a, b in folds])
        for subset in task.subsets
    }
    assert max(exact, key=exact.get) == (1, 2)  # what was planted
    assert choose_layers(task, rows, settings, seed=7) == (1, 2)


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
    assert sorted(map(list, kept_splits(tmp_path / "trials").values())) == [
        ["rows60-split0", "rows60-split1", "rows119-split0"],
        [*of_half, *of_all],
    ]
    assert scored().rows == scored(work=None).rows
    before = (tmp_path / "trials/trials.jsonl").read_bytes()
    scored()
    assert (tmp_path / "trials/trials.jsonl").read_bytes() == before


def test_rows_of_one_class_alone_answer_with_it():
    labels = np.array([1, 1, 1, 0, 1])
    fit = (torch.randn(5, 3), np.array([0, 1, 2]), np.array([3, 4]))
    assert accuracies([fit], labels, SMALL) == [0.5]


def test_a_share_with_too_few_rows_is_left_out_of_its_set_alone(words, encoder, tmp_path):
    few = replace(words, name="TREC", pairs=words.pairs[:30])
    settings, seen = replace(SMALL, fractions=(1.0, 0.1)), []
    how = {"model": "tiny", "settings": settings, "progress": lambda *step: seen.append(step)}
    report = score_transfer(encoder, [few, words], work=tmp_path, **how)
    assert [(row.task, row.labels["share"], row.values["rows to train on"]) for row in report.rows] == [
        ("TREC", "0.1", 2), ("TREC", "1", 25), ("MR", "0.1", 14), ("MR", "1", 136),
    ]  # fmt: skip
    assert report.rows[0].remark == "too few rows"  # a tenth of 25
    assert report.rows[2:] == score_transfer(encoder, [words], **how).rows
    combined = [report.rows[place].values["layers combined"] for place in (1, 3)]
    assert report.means["layers combined"] == pytest.approx(np.mean(combined))
    assert ("TREC: splits", 2, 2) in seen
    assert sorted(map(len, kept_splits(tmp_path).values())) == [2, 4]


def test_what_cannot_be_scored(words, encoder):
    few = replace(words, name="TREC", pairs=words.pairs[:9])
    with pytest.raises(DataError, match="TREC leaves 4 rows to train on"):
        score_transfer(encoder, [few], model="tiny", settings=replace(SMALL, fractions=(0.5,)))
    for wrong in ({"fractions": (0.0, 1.0)}, {"fractions": ()}, {"splits": 0}, {"inner_splits": 0}, {"inner_share": 1}):
        with pytest.raises(UsageError):
            TransferSettings(**wrong)


@pytest.fixture(scope="module")
def problem():
    """Five layers of 12 numbers for 240 texts of three classes, which layers 1 and 3 tell apart a little."""
    drawn = np.random.default_rng(0)
    labels = drawn.integers(3, size=240)
    states = drawn.normal(size=(5, 240, 12)) + drawn.normal(size=(5, 1, 12))
    states[1] += 0.4 * drawn.normal(size=(3, 12))[labels]
    states[3] += 0.5 * drawn.normal(size=(3, 12))[labels]
    folds = list(StratifiedKFold(4, shuffle=True, random_state=0).split(labels, labels))
    return states, labels, folds


def plain_accuracy(features, labels, folds):
    """Share of rows a ridge classifier of scikit-learn gets right, each held out in its fold."""
    right = 0
    for fitted, held in folds:
        values = features[fitted]
        penalty = RIDGE * ((values - values.mean(axis=0)) ** 2).sum(axis=0).mean()
        model = Ridge(alpha=penalty).fit(values, np.eye(3)[labels[fitted]])
        right += (model.predict(features[held]).argmax(axis=1) == labels[held]).sum()
    return right / len(labels)


def test_means_of_layers_equal_ridge_regressions_of_scikit_learn(problem):
    states, labels, folds = problem
    subsets = [subset for size in range(1, 6) for subset in combinations(range(5), size)] * 3  # several chunks
    expected = [plain_accuracy(states[list(subset)].mean(axis=0), labels, folds) for subset in subsets[:31]]
    found = ridge_accuracies(torch.from_numpy(states), labels, folds, subsets)
    assert found == pytest.approx(expected * 3, abs=1e-12)
    assert max(expected) > 0.6  # there is something to find
    assert min(expected) < 0.45


def test_wide_states_are_projected_alike_and_keep_their_geometry():
    states = torch.randn(3, 50, 600, generator=torch.Generator().manual_seed(1))
    small = _small(states, True, True)
    assert small.shape == (3, 50, WIDTH)
    torch.testing.assert_close(small.mean(dim=0), _small(states.mean(dim=0, keepdim=True), True, True)[0])  # linear
    ratio = torch.pdist(small[0]) / torch.pdist(states[0].double()) * (600 / WIDTH) ** 0.5
    assert 0.8 < ratio.min() < ratio.max() < 1.2
    torch.testing.assert_close(_small(states[:, :, :40], True, True), states[:, :, :40].double())  # narrow: as they are
    assert _small(states, False, True).shape == (3, 50, WIDTH)
    assert _small(states, True, False).shape == (3, 50, WIDTH // 2)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_states_that_are_all_equal_are_no_error(problem, noise):
    states, labels, folds = problem
    states = states.copy()
    drawn = np.random.default_rng(3)
    # As the CLS states of the embeddings are: the same for every text, but for float32 rounding.
    states[0] = 30 * drawn.normal(size=(1, 12)) + noise * drawn.normal(size=(240, 12))
    found = ridge_accuracies(torch.from_numpy(states), labels, folds, [(0,), (3,), (0, 3)])
    assert found[0] <= 0.45  # no better than naming the most frequent class
    assert found[1] > 0.5
    assert found[2] == pytest.approx(found[1], abs=0.02)  # a layer that is constant adds a shift
