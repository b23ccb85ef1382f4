"""Batches and learning rates of contrastive training: Table 4 of the layer-wise attention pooling paper.

Importing this imports no torch.
"""

from dataclasses import dataclass

from truncate_kit.training.configuration import BASE_WIDTH, scaled_learning_rate
from truncate_kit.training.objectives import OBJECTIVES

LARGE_WIDTH = 1024
_ROBERTAS = ("roberta", "xlm-roberta", "camembert")


@dataclass(frozen=True, slots=True)
class Budget:
    """Rows of a step, and peak learning rates with a fixed pooling and with attention over the layers."""

    batch_size: int
    learning_rate: float
    attention_rate: float


TABLE_4: dict[tuple[str, str], Budget] = {
    ("dropout", "BERT-base"): Budget(64, 3e-5, 3e-5),
    ("dropout", "RoBERTa-base"): Budget(256, 1e-5, 1e-5),
    ("dropout", "RoBERTa-large"): Budget(256, 3e-5, 3e-5),
    ("diffcse", "BERT-base"): Budget(64, 7e-6, 3e-5),
    ("in-batch", "BERT-base"): Budget(256, 5e-5, 1e-5),
    ("in-batch", "RoBERTa-base"): Budget(256, 5e-5, 3e-5),
    ("in-batch", "RoBERTa-large"): Budget(256, 1e-5, 5e-5),
    ("hard-negatives", "BERT-base"): Budget(256, 5e-5, 2e-5),
    ("hard-negatives", "RoBERTa-base"): Budget(256, 5e-5, 3e-5),
    ("hard-negatives", "RoBERTa-large"): Budget(256, 1e-5, 5e-5),
}
"""By objective and by the paper's model."""


def default_budget(objective: str, family: str, width: int) -> Budget:
    """What a model of this family and width is trained with where nothing else is asked for.

    From width 768 on the row of Table 4 for its kind: RoBERTa-large from 1,024 on, RoBERTa-base for RoBERTa's family,
    else BERT-base. Narrower models, which the paper has not, take the objective's usual batch and, with every pooling
    the same, `scaled_learning_rate`.
    """
    if width < BASE_WIDTH:
        rate = scaled_learning_rate(width)
        return Budget(OBJECTIVES[objective].batch_size, rate, rate)
    base = "RoBERTa-base" if family in _ROBERTAS else "BERT-base"
    # The paper has DiffCSE on BERT-base alone.
    return TABLE_4.get((objective, "RoBERTa-large" if width >= LARGE_WIDTH else base), TABLE_4[objective, "BERT-base"])
