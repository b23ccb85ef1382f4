"""The rows of Table 2 and the budgets of Table 4 against the paper's own tables."""

import pytest

from truncate_kit.methods.contrast.settings import ContrastiveSettings, default_budget
from truncate_kit.models.families import FAMILIES
from truncate_kit.training.settings import TABLE_2

# Table 4 as printed: objective, recipe, width, batch, rate with CLS, rate with attention over the layers
TABLE_4 = """
dropout        bert    768  64  3e-5 3e-5
dropout        roberta 768  256 1e-5 1e-5
dropout        roberta 1024 256 3e-5 3e-5
in-batch       bert    768  256 5e-5 1e-5
in-batch       roberta 768  256 5e-5 3e-5
in-batch       roberta 1024 256 1e-5 5e-5
hard-negatives bert    768  256 5e-5 2e-5
hard-negatives roberta 768  256 5e-5 3e-5
hard-negatives roberta 1024 256 1e-5 5e-5
diffcse        bert    768  64  7e-6 3e-5
"""


@pytest.mark.parametrize("row", TABLE_4.strip().splitlines())
def test_the_defaults_are_those_of_table_4(row):
    objective, recipe, *numbers = row.split()
    width, batch, fixed, attended = map(float, numbers)
    for pooling, rate in (("cls", fixed), ("mean", fixed), ("concat", fixed), ("layer-attention", attended)):
        training = ContrastiveSettings(objective=objective, pooling=pooling).training(recipe, int(width))
        assert (training.batch_size, training.learning_rate) == (batch, rate)


def test_narrow_models_and_other_families():
    kin = {name for name, family in FAMILIES.items() if family.recipe == "roberta"}
    assert kin == {"roberta", "xlm-roberta", "camembert"}
    assert {family.recipe for family in FAMILIES.values()} == {"bert", "roberta"}
    assert default_budget("in-batch", "bert", 1024) == default_budget("in-batch", "roberta", 1024)
    assert default_budget("diffcse", "roberta", 1024) == default_budget("diffcse", "bert", 768)
    for objective, batch in (("dropout", 64), ("in-batch", 256), ("hard-negatives", 256)):
        assert default_budget(objective, "roberta", 384) == (4e-5, 4e-5, batch)
    asked = ContrastiveSettings(batch_size=7, learning_rate=1e-3).training("bert", 768)
    assert (asked.batch_size, asked.learning_rate) == (7, 1e-3)


def test_table_2_has_nine_rows_that_differ():
    made = [ContrastiveSettings(**row) for row in TABLE_2.values()]
    assert len(set(made)) == 9
    assert [settings.pooling for settings in made].count("layer-attention") == 4
