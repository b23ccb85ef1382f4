"""What encoders are trained for: one row per objective, with its data, its examples, its evaluator and its words.

Importing this imports no torch: settings, model cards and the command line's help read the rows. The functions that
build examples and evaluators import what they need when a trial begins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from truncate_kit.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from truncate_kit.data.types import PairSet, PairSplits
    from truncate_kit.models.encoder import Encoder
    from truncate_kit.training.evaluators import VectorEvaluator
    from truncate_kit.training.examples import Examples, TrainPairs

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
EPOCHS, BATCH_SIZE = 10, 32  # of the TMFT paper
SEARCH = "search"  # the objective of retrieval folders


def _spearman(full: "Encoder", pairs: "PairSet", *_: object) -> "VectorEvaluator":
    from truncate_kit.training.evaluators import PairEvaluator

    return PairEvaluator(full, pairs)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a model is trained with by contrast, as in Table 4 of the layer-wise attention pooling paper."""

    model: str | None  # `bert`, `roberta` (both base) or `roberta-large`; None for one that the paper does not have
    learning_rate: float  # peak rate with a fixed pooling
    attention_rate: float  # with attention over the layers
    batch_size: int = 0  # rows of a step; 0 is the objective's usual number


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective."""

    name: str  # as settings and options name it
    # `tmft` learns from labelled pairs at a layer, `contrast` by distinguishing a text's positive from everything else
    # in a batch (`truncate_kit.methods.contrast`)
    method: Method = "tmft"
    data: DataKind
    card: str  # what a model card says of the training
    metric: str = "Spearman × 100"  # the main score, in words
    published: str = "spearman"  # what files of published figures call that score
    epochs: int = EPOCHS  # usual number of epochs
    batch_size: int = BATCH_SIZE  # usual number of examples of a step
    trains_head: bool = False  # whether a classifier is trained beside the encoder, for the layer it is trained at
    # builds the examples of a trial: of `tmft` from `TrainPairs`, of `contrast` like `ContrastiveTexts`, which None is
    examples: "Callable[..., Examples] | None" = None
    # builds the evaluator of a split from the encoder whose tokenizer reads it, its pairs, the examples of the trial,
    # and the evaluator on dev where the split is test
    evaluator: "Callable[[Encoder, PairSet, Examples, Any], VectorEvaluator]" = _spearman
    # The rest is of `contrast` alone.
    budgets: tuple[Budget, ...] = ()  # of Table 4; without that of `bert` rates follow the width
    own: tuple[str, ...] = ()  # settings that only the objectives have that name them here
    without: tuple[str, ...] = ()  # settings of all others that this one leaves at their defaults
    # whether a generator fills in hidden words, which are found from the vector; the key of a run then has its digest
    fills_words: bool = False

    def goes_with(self, setting: str) -> bool:
        """Tell whether this field of `ContrastiveSettings` may differ from its default."""
        others = (row.own for row in OBJECTIVES.values())
        return setting not in self.without and (setting in self.own or not any(setting in own for own in others))

    @property
    def is_graded(self) -> bool:
        """Tell whether graded similarity is learned; of other tasks nobody knows beforehand if the last layers drop."""
        return self.method == "tmft" and self.data == "scores"

    def check_targets(self, data: "PairSplits", *, scored: bool = True) -> None:
        """Raise `DataError` where the targets of a split do not suit an objective for labelled pairs.

        And `UsageError` where pairs are to score what only queries do.

        Args:
            data: The splits.
            scored: Whether pairs choose and report; else queries do, and dev and test may hold any scores.
        """
        from truncate_kit.data.pairs import splits_for

        if self.data == "judged" and scored:
            hint = "Give queries as `retrieval`, or use another `objective`."
            raise UsageError(f"The objective {self.name} is scored by queries, and there are none.", hint=hint)
        for _, pairs in data.items() if self.method == "tmft" else ():
            if self.data == "classes" and not pairs.classes:
                raise DataError(f"{pairs.name} holds scores, not classes.", hint="Load it with classes=True.")
            if self.data != "classes" and pairs.classes:
                fitting = " or ".join(f'`objective="{row.name}"`' for row in _ROWS if row.data == "classes")
                raise DataError(f"{pairs.name} holds classes, not scores.", hint=f"Use {fitting}.")
            if self.data == "labels":
                other = next((pair.target for pair in pairs if pair.target not in (0.0, 1.0)), None)
                if other is not None or pairs.scale != (0.0, 1.0):
                    low, high = pairs.scale
                    found = f"the score {other:g}" if other is not None else f"a scale from {low:g} to {high:g}"
                    hint = 'Name the labels: `columns=("first", "second", "label")`; or use `objective="cosine"`.'
                    raise DataError(f"{pairs.name} holds {found}; {self.name} pairs are labelled 0 or 1.", hint=hint)
                if len({pair.target for pair in pairs}) < 2:
                    problem = f"{pairs.name} holds pairs labelled {pairs.pairs[0].target:g} only."
                    raise DataError(problem, hint="Both labels are needed in each of train, dev and test.")
        if self.is_graded and scored:  # before the first trial, of which nobody would see the scores
            for name, pairs in splits_for(data, seed=0).items():
                if name != "train":
                    pairs.check_ranked()


def _graded(train: "TrainPairs") -> "Examples":
    from truncate_kit.training.examples import Pairs, cosine_mse

    return Pairs(train.first, train.second, train.pairs.scores01(), cosine_mse)


def _searched(train: "TrainPairs") -> "Examples":
    from truncate_kit.evaluation.searching import measure_of_lengths
    from truncate_kit.training.examples import QueriesWithDocuments

    measure = measure_of_lengths(train.encoder)
    return QueriesWithDocuments(train.first, train.second, train.pairs.pairs, measure)


def _labelled(train: "TrainPairs") -> "Examples":
    from truncate_kit.training.examples import Pairs, cosine_entropy

    return Pairs(train.first, train.second, train.pairs.scores01(), cosine_entropy)


def _best_f1(full: "Encoder", pairs: "PairSet", _: object, dev: "Any") -> "VectorEvaluator":
    from truncate_kit.training.evaluators import ParaphraseEvaluator

    return ParaphraseEvaluator(full, pairs, dev)


def _classified(train: "TrainPairs") -> "Examples":
    import torch

    from truncate_kit.training.examples import PairClassifier, Pairs

    torch.manual_seed(train.seed)
    width = train.encoder.encode_ids(train.first[:1]).shape[-1]
    classifier = PairClassifier(width, len(train.pairs.classes)).to(train.encoder.device)
    return Pairs(train.first, train.second, train.pairs.scores(), classifier.loss, classifier)


def _macro_f1(full: "Encoder", pairs: "PairSet", examples: "Examples", _: object) -> "VectorEvaluator":
    from truncate_kit.training.evaluators import ClassEvaluator

    assert examples.head is not None
    return ClassEvaluator(full, pairs, examples.head)


_ROWS = (
    Objective(name="cosine", data="scores", card="TMFT: mean squared error between cosine and score", examples=_graded),
    Objective(
        name="paraphrase",
        data="labels",
        card="TMFT: binary cross entropy with the cosine as logit; a pair is called a paraphrase from the cosine on "
        "that is best on dev",
        metric="F1 × 100",
        published="f1",
        examples=_labelled,
        evaluator=_best_f1,
    ),
    Objective(
        name="entailment",
        data="classes",
        card="TMFT: a softmax classifier on (u, v, |u − v|), which is not kept",
        metric="macro F1 × 100",
        published="f1",
        trains_head=True,
        examples=_classified,
        evaluator=_macro_f1,
    ),
    Objective(
        name=SEARCH,
        data="judged",
        card="queries with documents that answer them, in-batch (equation 6 of the layer-wise attention pooling "
        "paper); other answers to a query are no negatives of it",
        metric="nDCG@10 of half the queries",
        published="ndcg",
        examples=_searched,
    ),
    # Epochs: of the released run of the supervised objectives, of SimCSE for dropout, of DiffCSE.
    Objective(
        name="in-batch",
        method="contrast",
        data="positives",
        card="supervised in-batch (equation 6)",
        epochs=3,
        batch_size=256,
        budgets=(Budget("bert", 5e-5, 1e-5), Budget("roberta", 5e-5, 3e-5), Budget("roberta-large", 1e-5, 5e-5)),
    ),
    Objective(
        name="dropout",
        method="contrast",
        data="texts",
        card="unsupervised, two dropout masks of each text (equation 7)",
        epochs=1,
        batch_size=64,
        budgets=(
            Budget("bert", 3e-5, 3e-5),
            Budget("roberta", 1e-5, 1e-5, 256),
            Budget("roberta-large", 3e-5, 3e-5, 256),
        ),
    ),
    Objective(
        name="diffcse",
        method="contrast",
        data="texts",
        card="unsupervised, two dropout masks of each text, and replaced words found from its vector (DiffCSE)",
        epochs=2,
        batch_size=64,
        budgets=(Budget("bert", 7e-6, 3e-5),),
        own=("replaced_weight", "masked_share"),
        without=("chunk", "mlp"),  # texts are encoded once, by the MLP that DiffCSE has over its vectors
        fills_words=True,
    ),
    Objective(
        name="hard-negatives",
        method="contrast",
        data="negatives",
        card="supervised with hard negatives (equation 8)",
        epochs=3,
        batch_size=256,
        budgets=(Budget("bert", 5e-5, 2e-5), Budget("roberta", 5e-5, 3e-5), Budget("roberta-large", 1e-5, 5e-5)),
        own=("hard_negative_weight",),
    ),
)
OBJECTIVES: dict[str, Objective] = {row.name: row for row in _ROWS}
_TRAINED_BY: dict[Method, str] = {"tmft": "`finetune()`", "contrast": "`finetune_contrastive()`"}


def objective_names(*methods: Method) -> tuple[str, ...]:
    """Return the names of all objectives that are trained by these methods."""
    return tuple(row.name for row in OBJECTIVES.values() if row.method in methods)


def described(*methods: Method) -> str:
    """Return the same with what each learns from, for a help text: "cosine (pairs with scores), …"."""
    return ", ".join(f"{name} ({DATA_WORDS[OBJECTIVES[name].data]})" for name in objective_names(*methods))


def find_objective(name: str, *methods: Method) -> Objective:
    """Return the row of that name. Raises `UsageError` unless there is one, trained by one of these methods."""
    if name not in objective_names(*methods):
        other = f"; {name} is trained by {_TRAINED_BY[OBJECTIVES[name].method]}" if name in OBJECTIVES else ""
        hint = f"Use one of: {', '.join(objective_names(*methods))}{other}."
        raise UsageError(f"There is no objective {name!r} here.", hint=hint)
    return OBJECTIVES[name]
