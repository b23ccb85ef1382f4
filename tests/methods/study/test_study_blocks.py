"""Models of a study with some of their blocks only."""

from dataclasses import replace

import pytest
import torch

from tests.support.files import pairs_file, write_study
from tests.support.training import swept
from tests.support.trials import rows_of
from truncate_kit.core.errors import UsageError
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import load_model, run_study
from truncate_kit.methods.tmft.trials import kept_encoder
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep
from truncate_kit.report.study import write_tables


@pytest.fixture
def study(tiny_folder, tmp_path):
    """A function from keys of the last model to the study."""
    pairs_file(tmp_path / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    training, tasks = {"epochs": 1, "learning_rate": 1e-3}, [{"data": "graded.csv", "name": "g"}]

    def read(**last):
        models = [{"model": tiny_folder("bert")}, {"model": tiny_folder("bert")} | last]
        return read_study(write_study(tmp_path, seeds=1, training=training, models=models, tasks=tasks))

    return read


def test_the_layers_of_the_kept_model_are_trained_and_named(study, tiny_folder, tmp_path):
    plan = study(blocks=[1, 3])
    assert [model.name for model in plan.models] == ["model", "model, blocks 1, 3"]
    by_hand = keep(load_encoder(tiny_folder("bert")), (1, 3))
    assert encoder_digest(load_model(plan.models[1])) == encoder_digest(by_hand)
    result = run_study(plan, tmp_path / "out")
    assert [row.scores.layer for row in rows_of(result, "model", "g")] == [0, 1, 2, 3]
    data = complete_splits(load_pairs(tmp_path / "graded.csv"))
    alone = swept(by_hand, tmp_path / "alone", data, plan.tasks[0].training, layers="all")
    rows = rows_of(result, "model, blocks 1, 3", "g")
    assert [row.scores for row in rows] == list(alone.layers)
    assert {row.depth for row in rows} == {2}
    write_tables(result, tmp_path / "out")
    assert "model, blocks 1, 3" in (tmp_path / "out/tables.md").read_text()


def test_published_figures_stand_beside_layers_of_the_same_blocks_only(study, tmp_path):
    """Layer 2 of a model of blocks 1 and 3 is no layer 2 that anybody published."""
    rows = "".join(f"theirs,plain,g,{layer},test,spearman,0.{layer}\n" for layer in range(4))
    (tmp_path / "figures.csv").write_text("name,setting,dataset,layer,split,metric,mean\n" + rows)
    plan = study(blocks=[1, 3], name="cut")
    models = tuple(replace(model, published="theirs") for model in plan.models)
    result = run_study(replace(plan, models=models, published=str(tmp_path / "figures.csv")), tmp_path / "out")
    assert [row.published_test for row in rows_of(result, "model", "g")] == [0, 10, 20, 30]
    assert [row.published_test for row in rows_of(result, "cut", "g")] == [0, 10, None]


def test_text_names_blocks_as_commands_do_and_random_weights_are_kept_likewise(study):
    plan = study(blocks="2..3", name="top", weights="random")
    assert (plan.models[1].blocks, plan.models[1].name) == ((2, 3), "top")
    whole = load_model(study(name="all", weights="random").models[1])
    assert torch.equal(load_model(plan.models[1]).vectors(["a cat"]), keep(whole, (2, 3)).vectors(["a cat"]))


def test_vectors_of_several_layers_lose_none(encoder):
    encoder.pool_with(LayerPooling(16, layers=(1, 3)))
    with pytest.raises(UsageError, match="combine several layers"):
        kept_encoder(encoder, (1, 3))
