"""One row is all that an objective needs: what a row added here says is trained, scored and shown everywhere."""

import dataclasses

import pytest
import torch

from tests.support.pairs import labelled_splits, word_splits
from tests.support.training import SETTINGS
from truncate_kit.contrastive.running import finetune_contrastive
from truncate_kit.contrastive.settings import ContrastiveSettings
from truncate_kit.data.triplets import raw_texts
from truncate_kit.encoders import load_encoder
from truncate_kit.errors import DataError, UsageError
from truncate_kit.study.running import run_study
from truncate_kit.study.study_file import read_study
from truncate_kit.sweep.finetune import finetune
from truncate_kit.sweep.settings import SweepSettings
from truncate_kit.training.configuration import TrainingSettings
from truncate_kit.training.examples import Pairs
from truncate_kit.training.objectives import OBJECTIVES, Objective, described, find_objective
from truncate_kit.training.tasks import LabelledTask


def absolute(first, second, target):
    return (torch.nn.functional.cosine_similarity(first, second) - target).abs().mean()


@pytest.fixture
def row(monkeypatch):
    """An objective that the package does not have: the absolute difference, on pairs labelled 0 or 1."""
    added = Objective(
        name="absolute",
        data="labels",
        card="TMFT: the absolute difference between cosine and label",
        metric="Spearman × 100, of labels",
        published="rank",
        examples=lambda train: Pairs(train.first, train.second, train.pairs.scores01(), absolute),
    )
    monkeypatch.setitem(OBJECTIVES, added.name, added)
    return added


def test_a_test_set_kept_secret_is_said_before_anything_is_trained(tiny_folder, tmp_path):
    """Its scores are all the same number, and no correlation would be there at the end of the first trial."""
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    for name in ("dev", "test"):
        pairs = getattr(data, name)
        secret = dataclasses.replace(pairs, pairs=tuple(dataclasses.replace(pair, target=0.0) for pair in pairs))
        hidden = dataclasses.replace(data, **{name: secret})
        with pytest.raises(DataError, match=rf"{pairs.name} holds {len(pairs)} pairs with 1 score: nothing can be"):
            finetune(encoder, hidden, out=tmp_path / name)
        with pytest.raises(DataError, match="with 1 score"):
            finetune_contrastive(encoder, raw_texts("texts", data.texts()), hidden, out=tmp_path / name,
                                 settings=ContrastiveSettings(objective="dropout", dropout=0.1))  # fmt: skip
        assert not (tmp_path / name).exists()
        OBJECTIVES["cosine"].check_targets(hidden, scored=False)  # where queries choose and report


def test_a_new_row_is_trained_scored_and_written_on_the_card(row, tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), labelled_splits()
    examples, dev, _ = LabelledTask(encoder, data, "absolute").trial(encoder, 0)
    vectors = [encoder.vectors([getattr(pair, side) for pair in data.train]) for side in ("first", "second")]
    encoder.eval()
    loss = examples.loss(encoder, range(len(data.train)))
    torch.testing.assert_close(loss, absolute(*vectors, torch.tensor(data.train.scores())), atol=1e-5, rtol=1e-5)
    result = finetune(
        encoder,
        data,
        out=tmp_path,
        settings=SweepSettings(layers="1", seeds=(0,)),
        training=dataclasses.replace(SETTINGS, objective="absolute", epochs=1),
    )
    assert result.metric == row.metric
    assert row.card in (tmp_path / "lean/README.md").read_text()
    assert dev.score(load_encoder(tmp_path / "lean"))[0] == pytest.approx(result.lean.dev, abs=1e-3)


def test_help_and_errors_list_the_new_row(row):
    assert "absolute (pairs labelled 0 or 1)" in described("tmft")
    assert "absolute" not in described("contrast")
    with pytest.raises(UsageError, match="'squared'") as problem:
        TrainingSettings(objective="squared")
    assert "absolute" in problem.value.hint
    with pytest.raises(DataError, match="absolute pairs are labelled 0 or 1"):
        row.check_targets(
            dataclasses.replace(labelled_splits(), dev=dataclasses.replace(labelled_splits().dev, scale=(0.0, 5.0)))
        )
    dev = labelled_splits().dev
    ones = dataclasses.replace(dev, pairs=tuple(pair for pair in dev if pair.target == 1))
    with pytest.raises(DataError, match=f"{dev.name} holds pairs labelled 1 only"):
        row.check_targets(dataclasses.replace(labelled_splits(), dev=ones))


def test_a_study_finds_the_published_figures_by_the_rows_measure(row, tiny_folder, tmp_path):
    lines = [f"{pair.first},{pair.second},{pair.target:g}" for pair in labelled_splits().train]
    (tmp_path / "pairs.csv").write_text("\n".join(["sentence1,sentence2,score", *lines]))
    (tmp_path / "figures.csv").write_text(
        "name,setting,dataset,layer,split,metric,mean\nm,plain,d,1,test,f1,0.6\nm,plain,d,1,test,rank,0.7\n"
    )
    (tmp_path / "study.toml").write_text(
        'seeds = 1\nlayers = "1"\npublished = "figures.csv"\n'
        f'[[models]]\nmodel = "{tiny_folder("bert")}"\nname = "m"\n'
        '[[tasks]]\ndata = "pairs.csv"\nname = "d"\nobjective = "absolute"\nepochs = 1\n'
    )
    (only,) = run_study(read_study(tmp_path / "study.toml"), tmp_path / "out").rows
    assert (only.published, only.metric) == (70.0, row.metric)


def test_each_method_takes_its_own_objectives(tiny_folder, tmp_path):
    with pytest.raises(UsageError, match="'cosine'"):
        ContrastiveSettings(objective="cosine")
    with pytest.raises(UsageError, match="'dropout'"):
        find_objective("dropout", "tmft")
    with pytest.raises(UsageError, match="'in-batch'") as problem:
        finetune(
            load_encoder(tiny_folder("bert")),
            labelled_splits(),
            out=tmp_path,
            training=dataclasses.replace(SETTINGS, objective="in-batch"),
        )
    own = "cosine, paraphrase, entailment"
    assert problem.value.hint == f"Use one of: {own}; in-batch is trained by `finetune_contrastive()`."
    with pytest.raises(UsageError, match="'mse'") as problem:
        find_objective("mse", "tmft")
    assert problem.value.hint == f"Use one of: {own}."
