"""Frozen heads from end to end on tiny models: what is reported, saved, resumed and refused."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr

from tests.support.families import plain_states
from tests.support.killing import killed_beyond
from truncate_kit.core.errors import DataError, ModelError, UsageError
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair
from truncate_kit.data.seen import pair_keys, seen_by
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.frozen.run import finetune_frozen, nli_scores
from truncate_kit.methods.frozen.settings import FrozenReport, FrozenSettings, choose
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

SUBJECTS = ["the cat", "a dog", "the small dog", "a red cat", "the big tree", "a mat", "the blue mat", "not a tree"]
DEEDS = ["sat", "ran", "sat on the mat", "ran under the tree", "not red", "big", "blue and small", "under the mat"]
TEXTS = [f"{subject} {deed}" for subject in SUBJECTS for deed in DEEDS]
FAST = FrozenSettings(epochs=3, pretraining_epochs=2, nli_epochs=1, seeds=(0, 1), learning_rate=1e-2)


def pair_set(name, count, step, classes=()):
    """Pairs whose score is the share of words they have in common."""
    pairs = []
    for number in range(count):
        first, second = TEXTS[number * 3 % 64], TEXTS[(number * step + 1) % 64]
        common = len({*first.split()} & {*second.split()}) / len({*first.split()} | {*second.split()})
        pairs.append(TextPair(first, second, float(number % len(classes)) if classes else round(5 * common, 1)))
    return PairSet(name=name, pairs=tuple(pairs), scale=(0.0, 5.0), scale_source="given", classes=tuple(classes))


TRAIN, DEV, TEST = pair_set("train", 60, 5), pair_set("dev", 20, 7), pair_set("test", 25, 11)
DATA = PairSplits(name="words", train=TRAIN, dev=DEV, test=TEST)
RAW = [f"{text} and {other}" for text in TEXTS[:20] for other in ("the cat", "a dog")]


@pytest.fixture(scope="module")
def gpt2(tiny_folder):
    return load_encoder(tiny_folder("gpt2"), pooling="last")


def frozen(encoder, out, data=DATA, **options):
    own = {name: options.pop(name) for name in ("raw", "nli", "progress") if name in options}
    return finetune_frozen(encoder, data, out=out, settings=replace(FAST, **options), **own)


@pytest.fixture(scope="module")
def whole(gpt2, tmp_path_factory):
    """A run with all steps and numbers of blocks, and its folder."""
    out = tmp_path_factory.mktemp("frozen")
    return frozen(gpt2, out, layers="all", raw=RAW), out


def without_seconds(report):
    trials = tuple(replace(trial, seconds=0.0) for trial in report.trials)
    return replace(report, trials=trials, seconds=0.0)


def test_every_step_runs_and_the_saved_model_is_the_chosen_trial_cut_above_its_blocks(whole, gpt2):
    report, out = whole
    groups = [(step, layer) for step in ("cosine", "siamese", "autoencoder") for layer in (1, 2, 3)]
    assert [(one.step, one.layer, one.seed) for one in report.trials] == [
        (*group, s) for group in groups for s in (0, 1)
    ]
    assert report.reconstruction.code_widths == (4, 8, 8)
    assert report.reconstruction.num_sentences == 40
    assert report.overlap == DATA.overlap
    assert FrozenReport.from_dict(report.to_dict()) == report
    means = {group: report.score(*group, "dev")[0] for group in groups}
    assert means[report.chosen_step, report.chosen_layer] == max(means.values())
    noted = {*pair_keys(DATA.train).tolist(), *pair_keys(DATA.dev).tolist()}
    assert set(seen_by(out / "frozen").tolist()) == noted
    model = load_encoder(out / "frozen")
    assert model.depth == report.chosen_layer
    found = evaluate(model, DATA.test.pairs)
    assert found.spearman == pytest.approx(report.chosen.test, abs=0.2)  # ranks that lie within rounding may swap
    assert found.pearson == pytest.approx(report.chosen.test_pearson, abs=0.01)
    ours, kept = load_file(out / "frozen/model.safetensors"), truncate(gpt2, report.chosen_layer).backbone.state_dict()
    assert ours.keys() == kept.keys()
    assert all(torch.equal(ours[name], kept[name]) for name in kept)  # frozen


def plain_correlation(folder, block, pairs):
    """Spearman of last-token cosines of one block, by transformers and scipy alone."""
    sides = [
        [plain_states(folder, text, normed=False)[block][-1] for text in (pair.first, pair.second)] for pair in pairs
    ]
    found = [float(torch.cosine_similarity(first, second, dim=0)) for first, second in sides]
    return 100 * float(spearmanr(found, [pair.target for pair in pairs]).statistic)


def test_plain_states_are_correlated_block_by_block(whole, tiny_folder):
    """On test, and on the training pairs as in the paper's figure 1; raw states, without the final norm."""
    report, _ = whole
    for block in (1, 2):  # the last one has a norm behind it there
        for found, pairs in ((report.states, DATA.test.pairs), (report.train_states, DATA.train.pairs)):
            expected = plain_correlation(tiny_folder("gpt2"), block, pairs)
            assert found[block - 1] == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("final_norm", [False, True])
def test_deep_networks_of_given_widths_are_saved_as_they_were_trained(gpt2, tmp_path, final_norm):
    given = {"depth": 2, "codes": (5, 7), "loss": "mse", "score": "sigmoid", "final_norm": final_norm}
    report = frozen(truncate(gpt2, 2), tmp_path, steps=("autoencoder",), seeds=(0,), raw=RAW, **given)
    assert report.reconstruction.code_widths == (5, 7)
    model = load_encoder(tmp_path / "frozen")
    assert (model.heads.raw, len(model.heads.networks.layers)) == (not final_norm, 2)
    assert evaluate(model, DATA.test.pairs).pearson == pytest.approx(report.chosen.test_pearson, abs=0.01)


def test_worst_errors_are_the_largest_without_the_mean_difference_on_dev(whole):
    report, out = whole
    model = load_encoder(out / "frozen")

    def differences(pairs):
        first, second = model.vectors([pair.first for pair in pairs]), model.vectors([pair.second for pair in pairs])
        return model.similarities(first, second).numpy() - np.array(pairs.scores01())

    errors = differences(DATA.test) - differences(DATA.dev).mean()
    assert [error for *_, error in report.worst] == pytest.approx(sorted(errors, key=abs, reverse=True)[:20], abs=1e-4)
    first, second, target, predicted, _ = report.worst[0]
    place = int(np.abs(errors).argmax())
    assert (first, second) == (DATA.test.pairs[place].first, DATA.test.pairs[place].second)
    assert predicted - target == pytest.approx(differences(DATA.test)[place], abs=1e-4)


def train_all(folder, out):
    torch.set_num_threads(1)
    frozen(load_encoder(folder, pooling="last"), out, layers="all", raw=RAW)


def test_a_killed_run_continues_and_ends_with_the_same(whole, gpt2, tiny_folder, tmp_path):
    report, out = whole

    def finished():
        return len(list(tmp_path.glob("frozen-heads/trials/*/*-blocks*")))

    for number in (1, 13):  # among layer cosines, then autoencoders
        killed_beyond(number, finished, 0, train_all, tiny_folder("gpt2"), tmp_path)
        assert not (tmp_path / "frozen").exists()
    seen: list[str] = []
    done = frozen(gpt2, tmp_path, layers="all", raw=RAW, progress=lambda task, done, total: seen.append(task))
    assert without_seconds(done) == without_seconds(report)
    assert not any("cosine" in task or "States" in task for task in seen)  # finished before the kill: not run again
    assert (tmp_path / "frozen/2_LayerHeads/model.safetensors").read_bytes() == (
        out / "frozen/2_LayerHeads/model.safetensors"
    ).read_bytes()


def test_a_shorter_run_chooses_among_what_it_names_and_shows_all_of_its_seeds(whole, gpt2, tmp_path):
    report, out = whole
    shutil.copytree(out, tmp_path / "copy")
    work = tmp_path / "copy/frozen-heads"
    records = (work / "trials/trials.jsonl").read_bytes()
    again = frozen(gpt2, tmp_path / "copy", layers="1,3", steps=("autoencoder",), seeds=(0,), raw=RAW)
    assert again.trials == tuple(trial for trial in report.trials if trial.seed == 0)
    assert FrozenReport.read(work / "frozen.json").trials == again.trials
    named = [trial for trial in again.trials if trial.step == "autoencoder" and trial.layer in (1, 3)]
    assert again.chosen == choose(named)
    assert (work / "trials/trials.jsonl").read_bytes() == records  # nothing was trained but for weights


def test_heads_that_were_forgotten_are_trained_again_and_leave_no_checkpoint(gpt2, tmp_path, caplog):
    report = frozen(gpt2, tmp_path, steps=("cosine",))
    weights = tmp_path / "frozen/2_LayerHeads/model.safetensors"
    before = weights.read_bytes()
    (kept,) = (path for path in tmp_path.glob("frozen-heads/trials/*/*") if path.is_dir())
    kept.with_suffix(".checkpoint").write_bytes(b"left by a kill")
    frozen(gpt2, tmp_path, steps=("cosine",))
    assert not list(tmp_path.rglob("*.checkpoint"))
    (kept / "model.safetensors").write_bytes(b"short")  # damaged
    again = frozen(gpt2, tmp_path, steps=("cosine",))
    assert f"{kept} are damaged" in caplog.text
    assert without_seconds(again) == without_seconds(report)
    assert weights.read_bytes() == before
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_trials_of_other_settings_or_data_are_not_taken_for_these(gpt2, tmp_path):
    data = replace(DATA, train=pair_set("train", 60, 13))
    runs = ({}, {"score": "sigmoid"}, {"hidden": 5}, {"data": data})
    found = [frozen(gpt2, tmp_path, steps=("cosine",), seeds=(0,), **one).chosen.dev_pearson for one in runs]
    assert len(set(found)) == 4
    assert len([path for path in tmp_path.glob("frozen-heads/trials/*") if path.is_dir()]) == 4


def test_heads_on_the_lowest_blocks_never_read_the_others(gpt2, tmp_path):
    broken = truncate(gpt2, 3)
    for name, weight in broken.backbone.named_parameters():
        if name.startswith("h.2."):
            weight.data.fill_(float("nan"))
    report = frozen(broken, tmp_path, layers="2", steps=("siamese",), seeds=(0,))
    assert np.isfinite(report.chosen.dev)
    assert len(report.states) == 2
    (states,) = tmp_path.glob("frozen-heads/states/*/states.f32")
    assert states.stat().st_size == len(DATA.texts()) * 2 * 16 * 4


def test_training_pairs_are_learnt_and_nli_pairs_come_first(gpt2, tmp_path):
    settings = {"steps": ("siamese",), "seeds": (0,), "epochs": 20}
    data = replace(DATA, dev=TRAIN)  # what is learnt of the very pairs
    report = frozen(gpt2, tmp_path / "a", data, **settings)
    plain = [evaluate(truncate(gpt2, block), TRAIN.pairs).spearman for block in (1, 2, 3)]
    assert report.chosen.dev > max(plain) + 20
    nli = pair_set("nli", 30, 13, ("Contradiction", "entailment", "neutral"))
    assert nli_scores(nli)[:4] == [0.0, 1.0, 0.5, 0.0]
    first = frozen(gpt2, tmp_path / "b", data, nli=nli, **settings)
    assert report.test_sentences_in_nli is None
    assert first.test_sentences_in_nli == len({*data.test.texts()} & {*nli.texts()}) > 0
    assert first.chosen.dev_scores != report.chosen.dev_scores


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"raw": None}, UsageError),
        ({"raw": ["one", "two"]}, DataError),
        ({"settings": replace(FAST, layers="0", steps=("cosine",))}, UsageError),
        ({"settings": replace(FAST, layers="4", steps=("cosine",))}, ModelError),
        ({"settings": replace(FAST, codes=(4, 999))}, UsageError),
        ({"data": replace(DATA, test=None)}, DataError),
        ({"data": replace(DATA, dev=pair_set("d", 9, 5, ("a", "b")))}, DataError),
        ({"nli": pair_set("n", 9, 5)}, DataError),
        ({"nli": pair_set("n", 9, 5, ("entailment", "yes"))}, DataError),
        ({"cut": 0}, ModelError),
        ({"model": "bert", "settings": replace(FAST, final_norm=True)}, UsageError),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_computed(tiny_folder, tmp_path, change, error):
    options = {"model": "gpt2", "data": DATA, "settings": FAST, "raw": RAW, "nli": None, "cut": 3} | change
    encoder = truncate(load_encoder(tiny_folder(options.pop("model"))), options.pop("cut"))
    with pytest.raises(error):
        finetune_frozen(encoder, options.pop("data"), out=tmp_path, **options)
    assert not list(tmp_path.glob("**/*.f32"))


def test_the_best_mean_on_dev_is_chosen_with_fewer_blocks_on_a_tie(whole):
    def rows(*values):
        names = ("step", "layer", "seed", "dev")
        return [replace(whole[0].trials[0], **dict(zip(names, value, strict=True))) for value in values]

    means = rows(("cosine", 2, 0, 90.0), ("cosine", 2, 1, 50.0), ("siamese", 3, 0, 71.0), ("siamese", 3, 1, 75.0))
    assert choose(means).dev == 75.0
    assert choose(rows(("cosine", 3, 0, 70.0), ("cosine", 1, 0, 70.0))).layer == 1
