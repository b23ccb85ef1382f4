"""Define objectives, training settings and trials, without torch."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from truncate_kit.core.errors import DataError, DivergedError, UsageError, known_name
from truncate_kit.core.hardware import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import COUNT, RATE, SEED, SHARE, Bounds, Result, setting

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits

Kind = TypeVar("Kind")
Method = Literal["tmft", "contrast"]
DataKind = Literal["scores", "labels", "classes", "judged", "texts", "positives", "negatives"]
DATA_WORDS: dict[DataKind, str] = {
    "scores": "pairs with scores",
    "labels": "pairs labelled 0 or 1",
    "classes": "pairs with classes",
    "judged": "a retrieval folder",
    "texts": "raw text",
    "positives": "texts with positives",
    "negatives": "texts with positives and hard negatives",
}
EPOCHS, BATCH_SIZE = 10, 32  # as in the TMFT paper
WORD_EPOCHS, WORD_BATCH_SIZE = 50, 128  # as in the TMFT paper for single words
SEARCH = "search"  # for retrieval folders
LEARNING = 3.5  # training time in forward passes: 3.3 to 3.7 measured
BASE_WIDTH, BASE_RATE = 768, 2e-5
NARROW_WIDTH, NARROW_RATE = 128, 5e-4
HIGHEST_SCALED_RATE = 1e-4
PRECISION_HELP = "Precision of training; bf16 (autocast) needs a processor that has it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A training objective.

    Attributes:
        method: `tmft` trains on labelled pairs; `contrast` trains with in-batch negatives.
        data: Training data, a key of `DATA_WORDS`.
        card: Description for model cards.
        metric: Name of the main score.
        published: The metric's name in files of published figures.
        trains_head: True if a classifier is trained too.
        examples: Builder, or its name in `training.examples`; arguments: encoder, first and second ids, pairs and seed
            (`tmft`), or those of `ContrastiveTexts` (`contrast`).
        evaluator: Builder, or its name; arguments: encoder, pairs, examples and, for test, dev's evaluator.
        rates: Defaults by model: peak rate with fixed pooling, peak rate with attention over layers, and batch size
            (Table 4 of the layer-wise attention pooling paper). If empty, the rate follows the width.
        own: Settings allowed only for objectives that list them.
        without: Settings that must keep their defaults.
        fills_words: True if a generator replaces masked words.
    """

    name: str
    method: Method = "tmft"
    data: DataKind
    card: str
    metric: str = "Spearman × 100"
    published: str = "spearman"
    epochs: int = EPOCHS
    batch_size: int = BATCH_SIZE
    trains_head: bool = False
    examples: str | Callable[..., Any] = "ContrastiveTexts"
    evaluator: str | Callable[..., Any] = "PairEvaluator"
    rates: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    fills_words: bool = False

    def goes_with(self, setting: str) -> bool:
        """Return whether a field of `ContrastiveSettings` may be changed for this objective."""
        others = (row.own for row in OBJECTIVES.values())
        return setting not in self.without and (setting in self.own or not any(setting in own for own in others))

    def check_targets(self, data: "PairSplits", *, scored: bool = True) -> None:
        """Check that the targets of all splits suit this objective.

        scored: select and report on pairs, not queries. Raises `DataError`, or `UsageError` if queries are needed.
        """
        from truncate_kit.data.pairs import splits_for

        if self.data == "judged" and scored:
            hint = "Give queries as `retrieval`, or use another `objective`."
            raise UsageError(f"The objective {self.name} needs queries for evaluation.", hint=hint)
        for _, pairs in data.items():
            if bool(pairs.classes) != (self.data == "classes"):
                kinds = ("scores", "classes") if self.data == "classes" else ("classes", "scores")
                hint = "Use an `objective` for this kind of data; `classes=True` reads labels as classes."
                raise DataError(f"{pairs.name} holds {kinds[0]}, not {kinds[1]}.", hint=hint)
            targets = {pair.target for pair in pairs}
            if self.data == "labels" and (targets != {0.0, 1.0} or pairs.scale != (0.0, 1.0)):
                raise DataError(
                    f"{pairs.name} does not hold exactly the labels 0 and 1, which {self.name} needs.",
                    hint='Name the label column: `columns=("first", "second", "label")`; or use `objective="cosine"`.',
                )
        if self.data == "scores" and scored:  # fail before the first trial
            for name, pairs in splits_for(data, seed=0).items():
                if name != "train":
                    pairs.check_ranked()


# Epochs: supervised as in the released run, dropout as in SimCSE, diffcse as in DiffCSE.
_ROWS = (
    Objective(name="cosine", data="scores", card="TMFT: mean squared error between cosine and score",
              examples="graded_pairs"),
    Objective(name="paraphrase", data="labels", metric="F1 × 100", published="f1",
              card="TMFT: binary cross entropy with the cosine as logit; the threshold on the cosine is the "
              "best on dev",
              examples="labelled_pairs", evaluator="ParaphraseEvaluator"),
    Objective(name="entailment", data="classes", metric="macro F1 × 100", published="f1", trains_head=True,
              card="TMFT: a softmax classifier on (u, v, |u − v|), which is not saved",
              examples="classified_pairs", evaluator="ClassEvaluator"),
    Objective(name=SEARCH, data="judged", metric="nDCG@10 of half the queries", published="ndcg",
              card="queries, answers and in-batch negatives (equation 6 of the layer-wise attention pooling paper); "
              "other answers to a query are not used as negatives",
              examples="queries_with_documents"),
    Objective(name="in-batch", method="contrast", data="positives", epochs=3, batch_size=256,
              card="supervised with in-batch negatives (equation 6)",
              rates={"bert": (5e-5, 1e-5, 256), "roberta": (5e-5, 3e-5, 256), "roberta-large": (1e-5, 5e-5, 256)}),
    Objective(name="dropout", method="contrast", data="texts", epochs=1, batch_size=64,
              card="unsupervised, two dropout masks of each text (equation 7)",
              rates={"bert": (3e-5, 3e-5, 64), "roberta": (1e-5, 1e-5, 256), "roberta-large": (3e-5, 3e-5, 256)}),
    # DiffCSE has its own MLP and encodes texts once: no `mlp`, no `chunk`.
    Objective(name="diffcse", method="contrast", data="texts", epochs=2, batch_size=64, fills_words=True,
              card="unsupervised, two dropout masks of each text, and detection of replaced words (DiffCSE)",
              rates={"bert": (7e-6, 3e-5, 64)}, own=("replaced_weight", "masked_share"), without=("chunk", "mlp")),
    Objective(name="hard-negatives", method="contrast", data="negatives", epochs=3, batch_size=256,
              card="supervised with hard negatives (equation 8)", own=("hard_negative_weight",),
              rates={"bert": (5e-5, 2e-5, 256), "roberta": (5e-5, 3e-5, 256), "roberta-large": (1e-5, 5e-5, 256)}),
)  # fmt: skip
OBJECTIVES: dict[str, Objective] = {row.name: row for row in _ROWS}


TABLE_2: dict[str, dict[str, Any]] = {
    "cls": {"pooling": "cls"},  # CLS_last
    "mean": {"pooling": "mean"},  # AVG_last
    "first-last": {"pooling": "first-last"},  # AVG_first-last
    "mean-first-last": {"pooling": "mean-first-last"},  # AVG_last + AVG_first-last
    "concat": {"pooling": "concat"},  # CLS_last + AVG_last
    "cls-attention": {"pooling": "layer-attention", "over": "cls", "last_cls": False},  # CLS_all attention
    "mean-attention": {"pooling": "layer-attention", "over": "mean", "last_cls": False},  # AVG_all attention
    "attention": {"pooling": "layer-attention", "last_cls": False},  # CLS_all + AVG_all attention
    "layer-attention": {"pooling": "layer-attention"},  # CLS_all + AVG_all attention, CLS_last
}
"""Settings for each row of the layer-wise attention pooling paper's Table 2."""


def objective_names(method: Method) -> tuple[str, ...]:
    """Name a method's objectives."""
    return tuple(row.name for row in OBJECTIVES.values() if row.method == method)


def described(method: Method) -> str:
    """Name a method's objectives with their data: "cosine (pairs with scores), …"."""
    return ", ".join(f"{name} ({DATA_WORDS[OBJECTIVES[name].data]})" for name in objective_names(method))


def find_objective(name: str, method: Method) -> Objective:
    """Find an objective. Raises `UsageError`."""
    return OBJECTIVES[known_name(f"{method} objective", name, objective_names(method))]


class TrainingSettings(Result):
    """Settings of one training run; defaults of the TMFT paper or its code, except `buckets` and narrow models' rates.

    Attributes:
        objective: A row of `OBJECTIVES`.
        epochs: Maximum; the epoch best on dev is kept.
        batch_size: Examples per step.
        learning_rate: Peak; by default from the width (`rate`).
        weight_decay: Of AdamW, except for biases and norms.
        warmup: Share of steps with a rising rate.
        max_gradient_norm: Gradients are clipped to this norm.
        precision: `bf16` computes products in bfloat16; weights stay float32.
        buckets: Batch texts of similar length.
        compact_vocabulary: Keep unused word embeddings out of the optimiser; same result up to rounding.
    """

    objective: str = setting(
        "cosine",
        f"{described('tmft')}; by default cosine or {SEARCH}, depending on the data.",
        choices=OBJECTIVES,
        kind=Literal[objective_names("tmft")],
        default=None,
    )
    epochs: int = setting(
        EPOCHS, f"Maximum; the best is kept (default {EPOCHS}; for words {WORD_EPOCHS}).", bounds=COUNT, default=None
    )
    batch_size: int = setting(
        BATCH_SIZE, f"Pairs per step (default {BATCH_SIZE}; for words {WORD_BATCH_SIZE}).", bounds=COUNT, default=None
    )
    learning_rate: float | None = setting(
        None, "Peak learning rate; by default 2e-5 at width 768, 5e-4 at 128.", bounds=RATE
    )
    weight_decay: float = setting(0.01, bounds=SHARE)
    warmup: float = setting(0.1, bounds=SHARE)
    max_gradient_norm: float = setting(1.0, bounds=Bounds(0, math.inf, whole=False, above=True))
    precision: Precision = setting("fp32", PRECISION_HELP, choices=TRAINING_PRECISIONS)
    buckets: bool = True
    compact_vocabulary: bool = True

    @property
    def row(self) -> Objective:
        """Return the objective's row."""
        return OBJECTIVES[self.objective]

    def rate(self, width: int) -> float:
        """Return the peak rate for this width."""
        return self.learning_rate or default_learning_rate(width)

    def settled(self, width: int) -> "TrainingSettings":
        """Return a copy with the rate filled in, to find stored trials."""
        return replace(self, learning_rate=self.rate(width))


def word_training(precision: str = "fp32", learning_rate: float | None = None) -> TrainingSettings:
    """Return the TMFT paper's settings for words. Raises `UsageError`."""
    values: dict[str, Any] = {"precision": precision, "learning_rate": learning_rate}  # checked by the settings
    return TrainingSettings(epochs=WORD_EPOCHS, batch_size=WORD_BATCH_SIZE, **values)


def default_learning_rate(width: int) -> float:
    """Return the peak rate for pairs: 5e-4 up to width 128, 2e-5 from 768 on (TMFT paper), between them a power law.

    Measured on last layers of width 64 to 384 (benchmarks/pick).
    """
    narrow = math.log(BASE_WIDTH / min(BASE_WIDTH, max(NARROW_WIDTH, width))) / math.log(BASE_WIDTH / NARROW_WIDTH)
    return float(BASE_RATE * (NARROW_RATE / BASE_RATE) ** narrow)


def scaled_learning_rate(width: int) -> float:
    """Return the peak rate 2e-5 · 768 / width, limited to 2e-5 … 1e-4; not benchmarked."""
    return min(HIGHEST_SCALED_RATE, max(BASE_RATE, BASE_RATE * BASE_WIDTH / width))


def rate_at(step: int, total: int, warmup: float) -> float:
    """Return learning rate / peak rate at a step 0 … total − 1: linear warm-up, then linear decay to 0."""
    rising = round(total * warmup)
    if step < rising:
        return step / max(1, rising)
    return max(0.0, (total - step) / max(1, total - rising))


def trial_name(layer: int, seed: int, epochs: int, stop_after: int | None = None) -> str:
    """Return a trial's name; stop_after: epochs run, if stopped early."""
    return f"layer{layer:02d}-seed{seed}-epochs{epochs}" + (f"-first{stop_after}" if stop_after is not None else "")


class BaseTrial(Result):
    """Result of one training run; scores are × 100."""

    layer: int  # kept blocks
    seed: int  # of all randomness
    dev_scores: tuple[float, ...]  # after each epoch or evaluation
    best_epoch: int  # from 1; all other scores are at this epoch
    dev: float  # main score on dev
    dev_pearson: float | None  # × 100, if defined
    test: float | None  # not in search trials
    test_pearson: float | None
    seconds: float  # training and evaluation


def trial_scores(
    dev_scores: Sequence[float],
    dev: tuple[float, float | None],
    test: tuple[float, float | None] | None,
    seconds: float,
) -> dict[str, Any]:
    """Return `BaseTrial` fields from the dev scores during training and the final scores (main, Pearson)."""
    score, pearson = test or (None, None)
    epochs = {"dev_scores": tuple(dev_scores), "best_epoch": dev_scores.index(max(dev_scores)) + 1, "seconds": seconds}
    return epochs | {"dev": dev[0], "dev_pearson": dev[1], "test": score, "test_pearson": pearson}


class Trial(BaseTrial):
    """One training run at one layer with one seed."""

    epochs: int  # budget, also for the learning-rate schedule
    steps: int
    # epochs run, if the search stopped early
    stopped_after: int | None = None
    # Scores of dev resamples, the same resamples for all trials; empty in search trials and results.
    dev_draws: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Return the name in records and files."""
        return trial_name(self.layer, self.seed, self.epochs, self.stopped_after)

    @property
    def epochs_run(self) -> int:
        """Count the epochs run."""
        return self.stopped_after or self.epochs

    def first(self, epochs: int) -> "Trial":
        """Return this trial as it was after `epochs` epochs."""
        scores, steps = self.dev_scores[:epochs], self.steps // self.epochs * epochs
        fields = trial_scores(scores, (max(scores), None), None, self.seconds * epochs / self.epochs)
        return replace(self, steps=steps, stopped_after=epochs, dev_draws=(), **fields)


def check_diverged(diverged: Sequence[tuple[str, DivergedError]]) -> None:
    """Raise `DivergedError` on the first diverged trial, which also names any others."""
    if diverged:
        (name, error), kept = diverged[0], " Finished trials are kept."
        also = f" Also diverged: {'; '.join(other for other, _ in diverged[1:])}." if len(diverged) > 1 else ""
        raise DivergedError(f"{name}: {str(error).removesuffix(kept)}{also}{kept}", hint=error.hint)


def run_trials(runs: Iterable[tuple[str, Callable[[], Kind]]]) -> list[Kind]:
    """Run named trials and return their results. Raises `DivergedError` after running all."""
    done, diverged = list[Kind](), list[tuple[str, DivergedError]]()
    for name, run in runs:
        try:
            done.append(run())
        except DivergedError as error:
            diverged.append((name, error))
    check_diverged(diverged)
    return done


class AdaptationSettings(Result):
    """Settings of masked language modelling; epochs and batch size as in the TMFT paper (32 × 8 accumulated).

    Unlike the paper: the rate for narrow models, and keeping the epoch best on held-out texts (5 %).
    """

    epochs: int = setting(10, bounds=COUNT)
    batch_size: int = setting(256, bounds=COUNT)
    learning_rate: float | None = setting(None, bounds=RATE)  # peak; by default `scaled_learning_rate`
    precision: str = setting("fp32", choices=TRAINING_PRECISIONS)
    seed: int = setting(0, bounds=SEED)

    def rate(self, width: int) -> float:
        """Return the peak rate for this width."""
        return self.learning_rate or scaled_learning_rate(width)
