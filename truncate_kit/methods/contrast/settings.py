"""Settings and results of contrastive training. Importing this imports no torch."""

from dataclasses import dataclass, fields
from operator import not_
from typing import Literal, get_args

from truncate_kit.core.errors import UsageError
from truncate_kit.core.precisions import TRAINING_PRECISIONS, Precision
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
"""Poolings over means of tokens, without a CLS state."""


@dataclass(frozen=True, slots=True)
class NamedPooling:
    """A row of Table 2: a pooling, and the parts of its attention over layers."""

    paper: str  # as the paper writes it
    pooling: ContrastivePooling
    words: str = ""  # of a fixed pooling in a model card
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
"""By name. The settings also allow combinations of `over` and `last_cls` that the paper does not have."""


LARGE_WIDTH = 1024


def default_budget(objective: str, recipe: str, width: int) -> tuple[float, float, int]:
    """Return the usual rate, rate with attention, and batch size for this recipe (`Family.recipe`) and width.

    From width 768 on they are a row of Table 4: RoBERTa-large from 1,024 on, else the recipe's base model, or BERT-base
    without such a row, as for DiffCSE. Narrower models and other objectives take the objective's usual batch and
    `scaled_learning_rate`.
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

    Others: the objective; `hard_negative_weight` and `precision`; epochs of `dropout` (SimCSE) and of `diffcse`,
    `replaced_weight` and `masked_share` (DiffCSE); the rates of models narrower than 768.

    Attributes:
        objective: `in-batch` (equation 6), `dropout` (7, raw text), `hard-negatives` (8) or `diffcse`
            (7, and replaced words found from the vector; raw text).
        pooling: `layer-attention`, `cls`, `mean`, `first-last` (mean over embeddings and last layer), `concat` (CLS and
            mean of the last layer) or `mean-first-last` (mean of the last layer, then `first-last`). `TABLE_2` has the
            rows of the paper.
        over: Of the layer-wise attention, see `LayerAttentionPooling`.
        last_cls: Of the same.
        literal: Of the same.
        mlp: A fresh linear layer and tanh after every pooling, d or 2d → d, as in the comparison of section 3.3.
        keep_pooler: False takes pooler and MLP off after training: attention and `concat` leave the CLS state of the
            top layer, a mean stays a mean.
        layer: Cuts the model, by default at its last layer.
        temperature: Of the softmax.
        hard_negative_weight: Added to the logit of an anchor's own negative. 0 is equation 8 as printed; the authors'
            released code has 1.
        replaced_weight: Of the loss over replaced words in `diffcse`, beside 1 for equation 7; DiffCSE's.
        masked_share: Share of the tokens that the generator of `diffcse` fills in, at least one of a text; DiffCSE's.
        epochs: By default those of the objective.
        batch_size: Rows of a step over all processes; by default as in Table 4, see `default_budget`.
        learning_rate: Peak rate; by default as in Table 4.
        max_tokens: Of a training text.
        evaluate_every: Steps between two looks at dev; None is an epoch.
        dropout: Share of hidden states and attention weights that training drops, by default the model's own. Many
            models drop no unit, and `dropout` and `diffcse` need different copies of a text.
        chunk: Texts that are encoded at a time in training, by default the whole batch; it changes memory and time.
        precision: Of training; the authors' code has 16 bits.
        seeds: Each trains a model. The best on dev is saved, also of seeds that were trained earlier.

    Raises:
        UsageError: A value is out of bounds, or does not fit another.
    """

    objective: str = setting("in-batch", f"{described('contrast')}.", TRAINING, choices=_NAMES)
    pooling: ContrastivePooling = setting("layer-attention", choices=POOLINGS)
    over: Over = setting(
        "both", "Of layer-attention: both, cls or mean states.", LAYERS, choices=OVER, name="--attend", default=None
    )
    last_cls: bool = setting(
        True, "Of layer-attention: put the last CLS first (the default).", LAYERS, default=None, show_default=False
    )
    literal: bool = setting(
        False, "Attention as printed: one weight for each layer, no softmax.", LAYERS, name="--literal"
    )
    mlp: bool = setting(True, "A fresh linear layer and tanh after the pooling.", LAYERS)
    keep_pooler: bool = setting(
        True, "Use pooler and MLP in training only.", LAYERS, name="--remove-pooler", default=False, parse=not_
    )
    layer: int | None = setting(None, "Layer to cut the model at; by default the last.", LAYERS, kind=int)
    temperature: float = setting(0.05, "Of the softmax.", TRAINING, bounds=_TEMPERATURE)
    hard_negative_weight: float = setting(
        0.0, "Added to the logit of a row's own negative; the authors' code: 1.", TRAINING, bounds=WEIGHT
    )
    replaced_weight: float = setting(
        0.005, "Of diffcse: weight of the loss over replaced words.", TRAINING, bounds=_REPLACED
    )
    masked_share: float = setting(0.3, "Of diffcse: share of tokens that are replaced.", TRAINING, bounds=_MASKED)
    epochs: int | None = setting(None, f"By default {_USUAL_EPOCHS}.", TRAINING, bounds=EPOCHS, kind=int)
    batch_size: int | None = setting(
        None, f"Rows per step; by default {_USUAL_ROWS}.", TRAINING, bounds=_ROWS, kind=int
    )
    learning_rate: float | None = setting(
        None, "Peak learning rate; by default as in docs/papers/layer-attention.md.", TRAINING, bounds=RATE, kind=float
    )
    max_tokens: int = setting(
        64, "Tokens per text; by default 64 in training.", DATA, bounds=_TOKENS, name="--max-length", default=None
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
            buckets=False,  # rows of like length would be easier to tell apart
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveResult(Result):
    """The outcome of `finetune_contrastive`; scores are Spearman in points, means over seeds."""

    model: str
    rows: str  # the training rows, in words
    num_rows: int
    rows_fingerprint: str
    data: str  # the graded pairs of dev and test
    data_fingerprint: str
    settings: ContrastiveSettings
    epochs: int
    batch_size: int
    learning_rate: float
    layer: int  # blocks that are kept, of `depth`
    depth: int
    parameters: int  # of the saved model
    # By seed, also of earlier calls with these settings; `dev_scores` are the looks at dev.
    trials: tuple[Trial, ...]
    chosen_seed: int  # best on dev; its weights were saved
    dev: float
    dev_std: float | None
    test: float | None  # None without a test split
    test_std: float | None
    test_texts: int  # distinct texts of test
    seen: int  # how many of them are among the training texts
    processes: int  # that trained together
    seconds: float  # of all seeds
    seen_before: str = ""  # that the model had seen test pairs before, in words

    @property
    def chosen(self) -> Trial:
        """Return the trial whose weights were saved."""
        return next(trial for trial in self.trials if trial.seed == self.chosen_seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights(Result):
    """How much each layer counts in the vector of each text: rows sum to 1; index 0 = embeddings."""

    model: str
    texts: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
