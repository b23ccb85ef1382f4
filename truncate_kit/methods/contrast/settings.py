"""What a contrastive run is, validated once."""

from dataclasses import dataclass, fields
from typing import get_args

from truncate_kit.bounds import BATCH, STEPS, WEIGHT, Bounds, check_numbers, seeds_of
from truncate_kit.errors import UsageError, known_name
from truncate_kit.methods.contrast.budgets import default_budget
from truncate_kit.methods.contrast.poolings import POOLINGS, ContrastivePooling, Over
from truncate_kit.precisions import Precision
from truncate_kit.results import Result
from truncate_kit.training.objectives import OBJECTIVES, objective_names
from truncate_kit.training.settings import BASE_WIDTH, TrainingSettings, settle_numbers

FEWEST_ROWS = 2
_TOKENS = Bounds(3, 1_000_000)
_MASKED, _REPLACED = Bounds(0, 1, whole=False, above=True, below=True), Bounds(0, 1000, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveSettings(Result):
    """One contrastive run; defaults are those of the authors of layer-wise attention pooling where they give any.

    Not theirs: the objective; `hard_negative_weight` and `precision`, as said below; epochs of `dropout` (SimCSE's) and
    of `diffcse`, `replaced_weight` and `masked_share` (DiffCSE's); the rates of models narrower than 768.

    Attributes:
        objective: `in-batch` (equation 6), `dropout` (7, raw text), `hard-negatives` (8) or `diffcse`
            (7, and replaced words found from the vector; raw text).
        pooling: `layer-attention`, `cls`, `mean`, `first-last` (mean over embeddings and last layer), `concat` (CLS and
            mean of the last layer) or `mean-first-last` (mean of the last layer, then `first-last`). `TABLE_2` has the
            rows of the paper.
        over: Of the layer-wise attention, as the next two; see `LayerAttentionPooling`.
        last_cls: See there.
        literal: See there.
        mlp: A fresh linear layer and tanh after every pooling, d or 2d → d, as in the comparison of section 3.3.
        keep_pooler: False trains with the pooler and then takes it and the MLP off: attention and `concat` leave the
            CLS state of the top layer, a mean stays a mean.
        layer: Where the model is cut; None keeps all.
        temperature: Of the softmax.
        hard_negative_weight: Of `hard-negatives`: added to the logit of an anchor's own negative. 0 is equation 8 as
            printed; the authors' released code has 1.
        replaced_weight: Of the loss over replaced words in `diffcse`, beside 1 for equation 7; DiffCSE's.
        masked_share: Share of the tokens that the generator of `diffcse` fills in, at least one of a text; DiffCSE's.
        epochs: None follows the objective.
        batch_size: Rows of a step over all processes; None follows Table 4, see `default_budget`.
        learning_rate: Peak rate; None likewise.
        max_tokens: Of a training text.
        evaluate_every: Steps between two looks at dev; None looks after each epoch.
        dropout: Share of hidden states and attention weights that training drops, None for the model's own. Many models
            have none, and `dropout` and `diffcse` tell a text from itself by nothing else.
        chunk: Texts that are encoded at a time in training, None for the whole batch at once; it changes memory and
            time only.
        precision: Of training; the authors' code has 16 bits.
        seeds: Each trains a model. The one best on dev is saved, of these and of those that were trained before with
            the same settings.

    Raises:
        UsageError: A value makes no sense.
    """

    objective: str = "in-batch"
    pooling: ContrastivePooling = "layer-attention"
    over: Over = "both"
    last_cls: bool = True
    literal: bool = False
    mlp: bool = True
    keep_pooler: bool = True
    layer: int | None = None
    temperature: float = 0.05
    hard_negative_weight: float = 0.0
    replaced_weight: float = 0.005
    masked_share: float = 0.3
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    max_tokens: int = 64
    evaluate_every: int | None = 100
    dropout: float | None = None
    chunk: int | None = None
    precision: Precision = "fp32"
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        known_name("contrastive objective", self.objective, objective_names("contrast"))
        known_name("pooling", self.pooling, POOLINGS)
        known_name("attention over", self.over, get_args(Over))
        if self.pooling != "layer-attention" and (self.over, self.last_cls, self.literal) != ("both", True, False):
            raise UsageError(
                f"{self.pooling} pooling has no attention to set up.", hint='Use `pooling="layer-attention"`.'
            )
        self._check_removal()
        self._check_numbers()
        self._check_suits()
        settle_numbers(self, self.training("bert", BASE_WIDTH))

    def _check_removal(self) -> None:
        if self.keep_pooler:
            return
        if not self.mlp and self.pooling in ("cls", "mean", "first-last"):
            raise UsageError(
                f"{self.pooling} pooling without an MLP has no pooler that could be removed.", hint="Keep the pooler."
            )
        if self.pooling == "layer-attention" and self.over == "mean" and not self.last_cls:
            raise UsageError(
                "Without its pooler this model gives CLS states, which attention over means alone never trains.",
                hint='Keep the pooler, or use `pooling="layer-attention"` with `over="both"` or `last_cls=True`.',
            )

    def _check_numbers(self) -> None:
        if self.batch_size is not None and self.batch_size < FEWEST_ROWS:
            hint = "Use a `batch_size` of 2 or more; some hundred are better."
            raise UsageError(f"A batch of {self.batch_size} row has nothing to contrast with.", hint=hint)
        if not 0 < self.temperature <= 10:
            raise UsageError(f"A temperature of {self.temperature} does not work.", hint="Use `temperature=0.05`.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UsageError(f"A dropout of {self.dropout} is no share of the units.", hint="Use `dropout=0.1`.")
        check_numbers(self, hard_negative_weight=WEIGHT, replaced_weight=_REPLACED, masked_share=_MASKED)
        check_numbers(self, chunk=BATCH, evaluate_every=STEPS, max_tokens=_TOKENS)
        object.__setattr__(self, "seeds", seeds_of(self.seeds))

    def _check_suits(self) -> None:
        """Raise `UsageError` for a setting that the objective does not have."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default and not OBJECTIVES[self.objective].goes_with(field.name):
                given, names = f"`{field.name}={value!r}`", objective_names("contrast")
                having = " or ".join(f'`objective="{one}"`' for one in names if OBJECTIVES[one].goes_with(field.name))
                problem = f"The objective {self.objective} does not go with {given}."
                raise UsageError(problem, hint=f"Leave {given} out, or use {having}.")

    def training(self, recipe: str, width: int) -> TrainingSettings:
        """The loop's part for a model of this recipe and width: random batches, no warm-up, no weight decay.

        Raises `UsageError`.
        """
        budget = default_budget(self.objective, recipe, width)
        rate = budget.attention_rate if self.pooling == "layer-attention" else budget.learning_rate
        return TrainingSettings(
            objective=self.objective,
            epochs=OBJECTIVES[self.objective].epochs if self.epochs is None else self.epochs,
            batch_size=budget.batch_size if self.batch_size is None else self.batch_size,
            learning_rate=rate if self.learning_rate is None else self.learning_rate,
            weight_decay=0.0,
            warmup=0.0,
            precision=self.precision,
            buckets=False,  # like lengths would make some rows easier to distinguish than chance does
        )
