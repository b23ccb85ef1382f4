"""Batches and learning rates of contrastive training: Table 4 of the layer-wise attention pooling paper.

Importing this imports no torch.
"""

from dataclasses import replace

from truncate_kit.training.objectives import OBJECTIVES, Budget
from truncate_kit.training.settings import BASE_WIDTH, scaled_learning_rate

LARGE_WIDTH = 1024


def default_budget(objective: str, recipe: str, width: int) -> Budget:
    """What a model of this recipe (`Family.recipe`) and width is trained with where nothing else is asked for.

    From width 768 on the row of Table 4 for its kind: RoBERTa-large from 1,024 on, else the base model of the recipe;
    BERT-base where the paper has no such row, as for DiffCSE. Narrower models, and objectives that the paper does not
    have, take the objective's usual batch and, with every pooling the same, `scaled_learning_rate`.
    """
    row, rate = OBJECTIVES[objective], scaled_learning_rate(width)
    printed = {budget.model: budget for budget in row.budgets if width >= BASE_WIDTH}
    base = printed.get("bert", Budget(None, rate, rate))
    found = printed.get("roberta-large" if width >= LARGE_WIDTH else recipe, base)
    return replace(found, batch_size=found.batch_size or row.batch_size)
