"""Settings and results of contrastive training. Importing this imports no torch."""

from dataclasses import dataclass, fields
from operator import not_
from typing import Literal, get_args

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import Result
from truncate_kit.core.settings import (
    BATCH,
    DATA,
    EPOCHS,
    LAYERS,
    RATE,
    STEPS,
    TRAINING,
    WEIGHT,
    Bounds,
    check_seeds,
    check_settings,
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
"""Poolings without a CLS state."""


@dataclass(frozen=True, slots=True)
class NamedPooling:
    """A row of Table 2: a pooling, and the parts of its layer-wise attention."""

    paper: str  # name in the paper
    pooling: ContrastivePooling
    words: str = ""  # for model cards
    over: Over = "both"
    last_cls: bool = True


TABLE_2 = {
    "cls": NamedPooling("CLS_last", "cls", "CLS"),
    "mean": NamedPooling("AVG_last", "mean", "mean"),
    "first-last": NamedPooling("AVG_first-last", "first-last", "mean over embeddings and last layer"),
    "mean-first-last": NamedPooling(
        "AVG_last + AVG_first-last",
        "mean-first-last",
        "mean of the last layer and mean over embeddings and last layer",
    ),
    "concat": NamedPooling("CLS_last + AVG_last", "concat", "CLS and mean of the last layer"),
    "cls-attention": NamedPooling("CLS_all attention", "layer-attention", over="cls", last_cls=False),
    "mean-attention": NamedPooling("AVG_all attention", "layer-attention", over="mean", last_cls=False),
    "attention": NamedPooling("CLS_all + AVG_all attention", "layer-attention", last_cls=False),
    "layer-attention": NamedPooling("CLS_all + AVG_all attention, CLS_last", "layer-attention"),
}
"""By name; settings allow further combinations of `over` and `last_cls`."""


LARGE_WIDTH = 1024


def default_budget(objective: str, recipe: str, width: int) -> tuple[float, float, int]:
    """Return rate, rate with attention, and batch size for this recipe (`Family.recipe`) and width.

    From width 768 on a row of Table 4: RoBERTa-large from 1,024 on, else the recipe's base model or BERT-base. Narrower
    models and other objectives take `scaled_learning_rate`, and the objective's batch.
    """
    row, rate = OBJECTIVES[objective], scaled_learning_rate(width)
    printed = row.rates if width >= BASE_WIDTH else {}
    base = printed.get("bert", (rate, rate, row.batch_size))
    return printed.get("roberta-large" if width >= LARGE_WIDTH else recipe, base)


FEWEST_ROWS = 2
_TOKENS = Bounds(3, 1_000_000)
_MASKED, _REPLACED = Bounds(0, 1, whole=False, above=True, below=True), Bounds(0, 1000, whole=False)
_ROWS, _TEMPERATURE = Bounds(FEWEST_ROWS, 1_000_000), Bounds(0, 10, whole=False, above=True)
_DROPPED = Bounds(0, 1, whole=False, below=True)
_NAMES = objective_names("contrast")
_USUAL_EPOCHS = ", ".join(f"{OBJECTIVES[name].epochs} for {name}" for name in _NAMES)
_USUAL_ROWS = ", ".join(f"{OBJECTIVES[name].batch_size} for {name}" for name in _NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveSettings(Result):
    """One contrastive run; most defaults come from the authors of layer-wise attention pooling.

    Objectives: `in-batch` (equation 6), `dropout` (7), `hard-negatives` (8; the authors' code adds a
    `hard_negative_weight` of 1) and `diffcse` (7 and replaced words). Poolings are rows of `TABLE_2`; `over`,
    `last_cls` and `literal` go to `LayerAttentionPooling`. `batch_size` counts rows over all processes; its default and
    the rate's come from Table 4. `evaluate_every` None is an epoch. `chunk` changes memory and time only. The best
    seed on dev is saved, earlier ones included.
    """

    objective: str = setting("in-batch", f"{described('contrast')}.", TRAINING, choices=_NAMES)
    pooling: ContrastivePooling = setting("layer-attention", choices=POOLINGS)
    over: Over = setting(
        "both",
        "Layer-attention input: cls states, mean states or both.",
        LAYERS,
        choices=OVER,
        name="--attend",
        default=None,
    )
    last_cls: bool = setting(
        True, "Put the last CLS first in layer-attention (the default).", LAYERS, default=None, show_default=False
    )
    literal: bool = setting(
        False, "Attention as printed in the paper: one weight per layer, no softmax.", LAYERS, name="--literal"
    )
    mlp: bool = setting(True, "Add a new linear layer and tanh after pooling.", LAYERS)
    keep_pooler: bool = setting(
        True, "Remove the pooler and MLP after training.", LAYERS, name="--remove-pooler", default=False, parse=not_
    )
    layer: int | None = setting(None, "Layer to cut the model at; by default the last.", LAYERS, kind=int)
    temperature: float = setting(0.05, "Softmax temperature.", TRAINING, bounds=_TEMPERATURE)
    hard_negative_weight: float = setting(
        0.0, "Added to the logit of a row's own negative; the authors' code: 1.", TRAINING, bounds=WEIGHT
    )
    replaced_weight: float = setting(0.005, "Weight of the replaced-token loss in diffcse.", TRAINING, bounds=_REPLACED)
    masked_share: float = setting(0.3, "Share of tokens replaced in diffcse.", TRAINING, bounds=_MASKED)
    epochs: int | None = setting(None, f"Epochs; by default {_USUAL_EPOCHS}.", TRAINING, bounds=EPOCHS, kind=int)
    batch_size: int | None = setting(
        None, f"Rows per step; by default {_USUAL_ROWS}.", TRAINING, bounds=_ROWS, kind=int
    )
    learning_rate: float | None = setting(
        None, "Peak learning rate; by default as in docs/papers/layer-attention.md.", TRAINING, bounds=RATE, kind=float
    )
    max_tokens: int = setting(
        64, "Tokens per text (default in training: 64).", DATA, bounds=_TOKENS, name="--max-length", default=None
    )
    evaluate_every: int | None = setting(100, "Steps between two evaluations on dev.", TRAINING, bounds=STEPS)
    dropout: float | None = setting(
        None, "Share of units dropped in training; by default the model's own.", TRAINING, bounds=_DROPPED, kind=float
    )
    chunk: int | None = setting(
        None, "Texts encoded at a time, to save memory.", TRAINING, bounds=BATCH, kind=int, name="--chunk-size"
    )
    precision: Precision = setting("fp32", PRECISION_HELP, TRAINING, choices=TRAINING_PRECISIONS)
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds, from 0.")

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        attends, bare = self.pooling == "layer-attention", self.pooling in ("cls", "mean", "first-last")
        if not attends and (self.over, self.last_cls, self.literal) != ("both", True, False):
            problem = f"{self.pooling} pooling has no attention to set up."
            raise UsageError(problem, hint='Use `pooling="layer-attention"`.')
        if not self.keep_pooler and not self.mlp and bare:
            problem = f"{self.pooling} pooling without an MLP has no pooler that could be removed."
            raise UsageError(problem, hint="Keep the pooler.")
        if not self.keep_pooler and attends and self.over == "mean" and not self.last_cls:
            raise UsageError(
                "Without its pooler this model gives CLS states, which attention over means alone never trains.",
                hint='Keep the pooler, or use `pooling="layer-attention"` with `over="both"` or `last_cls=True`.',
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default and not OBJECTIVES[self.objective].goes_with(field.name):
                problem = f"The objective {self.objective} does not go with `{field.name}={value!r}`."
                raise UsageError(problem, hint=f"Leave `{field.name}` out, or use another `objective`.")

    def training(self, recipe: str, width: int) -> TrainingSettings:
        """Return the loop's settings: random batches, no warm-up, no weight decay."""
        rate, attention_rate, batch_size = default_budget(self.objective, recipe, width)
        return TrainingSettings(
            objective=self.objective,
            epochs=self.epochs or OBJECTIVES[self.objective].epochs,
            batch_size=self.batch_size or batch_size,
            learning_rate=self.learning_rate or (attention_rate if self.pooling == "layer-attention" else rate),
            weight_decay=0.0,
            warmup=0.0,
            precision=self.precision,
            buckets=False,  # rows of like length are easier to tell apart
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveResult(Result):
    """The outcome of `finetune_contrastive`; scores are Spearman in points, means over seeds."""

    model: str
    rows: str  # in words
    num_rows: int
    rows_fingerprint: str
    data: str  # in words
    data_fingerprint: str
    settings: ContrastiveSettings
    epochs: int
    batch_size: int
    learning_rate: float
    layer: int  # blocks kept of `depth`
    depth: int
    parameters: int  # of the saved model
    # By seed, also of earlier calls with these settings.
    trials: tuple[Trial, ...]
    chosen_seed: int  # best on dev
    dev: float
    dev_std: float | None
    test: float | None
    test_std: float | None
    test_texts: int  # distinct test texts
    seen: int  # of these in the training texts
    processes: int
    seconds: float  # of all seeds
    seen_before: str = ""  # test pairs the model had seen, in words

    @property
    def chosen(self) -> Trial:
        """Return the trial with the saved weights."""
        return next(trial for trial in self.trials if trial.seed == self.chosen_seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights(Result):
    """Weight of each layer in each text's vector: rows sum to 1; index 0 = embeddings."""

    model: str
    texts: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
