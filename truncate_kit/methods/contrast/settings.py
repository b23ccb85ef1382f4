"""Settings and results of contrastive training; does not import torch."""

from dataclasses import fields
from operator import not_
from typing import Literal, get_args

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import (
    COUNT,
    DATA,
    LAYERS,
    RATE,
    WEIGHT,
    Bounds,
    Result,
    check_seeds,
    seeds_setting,
    setting,
)
from truncate_kit.training.settings import (
    BASE_WIDTH,
    OBJECTIVES,
    PRECISION_HELP,
    TrainingSettings,
    Trial,
    described,
    objective_names,
    scaled_learning_rate,
)

ContrastivePooling = Literal["layer-attention", "cls", "mean", "first-last", "concat", "mean-first-last"]
Over = Literal["both", "cls", "mean"]
OVER: tuple[str, ...] = get_args(Over)
POOLINGS: tuple[str, ...] = get_args(ContrastivePooling)
MEANS = ("mean", "first-last", "mean-first-last")
"""Poolings that use mean states and no CLS state."""


LARGE_WIDTH = 1024


def default_budget(objective: str, recipe: str, width: int) -> tuple[float, float, int]:
    """Return the default learning rate, learning rate with layer attention, and batch size.

    For width 768 or more, from the paper's Table 4: RoBERTa-large's row for 1,024 or more, else the row named `recipe`
    (`Family.recipe`), else BERT-base. Narrower models, and objectives without `rates`, use
    `scaled_learning_rate` and the objective's batch size.
    """
    row, rate = OBJECTIVES[objective], scaled_learning_rate(width)
    printed = row.rates if width >= BASE_WIDTH else {}
    base = printed.get("bert", (rate, rate, row.batch_size))
    return printed.get("roberta-large" if width >= LARGE_WIDTH else recipe, base)


FEWEST_ROWS = 2
_DROPPED = Bounds(0, 1, whole=False, below=True)
_NAMES = objective_names("contrast")
_USUAL_EPOCHS = ", ".join(f"{OBJECTIVES[name].epochs} for {name}" for name in _NAMES)
_USUAL_ROWS = ", ".join(f"{OBJECTIVES[name].batch_size} for {name}" for name in _NAMES)


class ContrastiveSettings(Result):
    """Settings of one contrastive run; most defaults follow the layer-attention paper.

    Objectives: `in-batch` (equation 6), `dropout` (7), `hard-negatives` (8; the authors' code uses
    `hard_negative_weight=1`) and `diffcse` (7 plus replaced-token detection). `TABLE_2` lists the paper's poolings;
    `over`, `last_cls` and `literal` configure `LayerAttentionPooling`. `batch_size` counts rows over all processes;
    `default_budget` sets the default batch size and learning rate. `evaluate_every=None` evaluates once per epoch.
    `chunk` affects only memory and time. The model of the best seed on dev is saved.
    """

    objective: str = setting("in-batch", f"{described('contrast')}.", choices=_NAMES)
    pooling: ContrastivePooling = setting("layer-attention", choices=POOLINGS)
    over: Over = setting(
        "both", "States that layer attention reads.", LAYERS, choices=OVER, name="--attend", default=None
    )
    last_cls: bool = setting(
        True, "Put the last layer's CLS first in layer-attention (the default).", LAYERS, default=None
    )
    literal: bool = setting(
        False, "Attention as printed in the paper: one weight per layer, no softmax.", LAYERS, name="--literal"
    )
    mlp: bool = setting(True, "Add a new linear layer and tanh after pooling.", LAYERS)
    keep_pooler: bool = setting(
        True, "Remove the pooler and MLP after training.", LAYERS, name="--remove-pooler", default=False, parse=not_
    )
    layer: int | None = setting(None, "Layer at which to cut the model; by default the last.", LAYERS)
    temperature: float = setting(0.05, "Softmax temperature.", bounds=Bounds(0, 10, whole=False, above=True))
    hard_negative_weight: float = setting(
        0.0, "Added to the logit of each anchor's hard negative (authors' code: 1).", bounds=WEIGHT
    )
    replaced_weight: float = setting(0.005, "Weight of the replaced-token loss in diffcse.", bounds=WEIGHT)
    masked_share: float = setting(0.3, "Share of tokens masked in diffcse.", bounds=RATE)
    epochs: int | None = setting(None, f"Epochs; by default {_USUAL_EPOCHS}.", bounds=COUNT)
    batch_size: int | None = setting(None, f"Rows per step; by default {_USUAL_ROWS}.", bounds=Bounds(FEWEST_ROWS))
    learning_rate: float | None = setting(
        None, "Peak learning rate; by default as in docs/papers/layer-attention.md.", bounds=RATE
    )
    max_tokens: int = setting(
        64,
        "Maximum tokens per text (default in training: 64).",
        DATA,
        bounds=Bounds(3),
        name="--max-length",
        default=None,
    )
    evaluate_every: int | None = setting(100, "Steps between two evaluations on dev.", bounds=COUNT)
    dropout: float | None = setting(
        None, "Dropout probability in training; by default the model's own.", bounds=_DROPPED
    )
    chunk: int | None = setting(None, "Texts encoded at a time, to save memory.", bounds=COUNT, name="--chunk-size")
    precision: Precision = setting("fp32", PRECISION_HELP, choices=TRAINING_PRECISIONS)
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds; the first is 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seeds(self.seeds)
        attends, bare = self.pooling == "layer-attention", self.pooling in ("cls", "mean", "first-last")
        if not attends and (self.over, self.last_cls, self.literal) != ("both", True, False):
            problem = f"{self.pooling} pooling does not use `over`, `last_cls` or `literal`."
            raise UsageError(problem, hint='Use `pooling="layer-attention"`.')
        if not self.keep_pooler and not self.mlp and bare:
            problem = f"{self.pooling} pooling without an MLP has no pooler to remove."
            raise UsageError(problem, hint="Keep the pooler.")
        if not self.keep_pooler and attends and self.over == "mean" and not self.last_cls:
            raise UsageError(
                "Without the pooler, the model returns CLS states, but attention over means does not train them.",
                hint='Keep the pooler, or use `pooling="layer-attention"` with `over="both"` or `last_cls=True`.',
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default and not OBJECTIVES[self.objective].goes_with(field.name):
                problem = f"The objective {self.objective} does not use `{field.name}={value!r}`."
                raise UsageError(problem, hint=f"Leave `{field.name}` out, or use another `objective`.")

    def training(self, recipe: str, width: int) -> TrainingSettings:
        """Return settings of the training loop: random batches, no warm-up, no weight decay."""
        rate, attention_rate, batch_size = default_budget(self.objective, recipe, width)
        return TrainingSettings(
            objective=self.objective,
            epochs=self.epochs or OBJECTIVES[self.objective].epochs,
            batch_size=self.batch_size or batch_size,
            learning_rate=self.learning_rate or (attention_rate if self.pooling == "layer-attention" else rate),
            weight_decay=0.0,
            warmup=0.0,
            precision=self.precision,
            buckets=False,  # batches of similar length give easier negatives
        )


class ContrastiveResult(Result):
    """Result of `finetune_contrastive`; scores are mean Spearman over seeds, in points."""

    model: str
    rows: str
    num_rows: int
    rows_fingerprint: str
    data: str
    data_fingerprint: str
    settings: ContrastiveSettings
    epochs: int
    batch_size: int
    learning_rate: float
    layer: int  # blocks kept of `depth`
    depth: int
    parameters: int  # of the saved model
    trials: tuple[Trial, ...]
    chosen_seed: int  # best on dev
    dev: float
    dev_std: float | None
    test: float | None
    test_std: float | None
    test_texts: int  # distinct
    seen: int  # test texts that are also training texts
    processes: int
    seconds: float  # of this call
    seen_before: str = ""  # sentence about test pairs seen in earlier training

    @property
    def chosen(self) -> Trial:
        """Return the trial with the saved weights."""
        return next(trial for trial in self.trials if trial.seed == self.chosen_seed)


class LayerWeights(Result):
    """Attention weights: one row per text, one column per layer (0: embeddings); each row sums to 1."""

    model: str
    texts: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
