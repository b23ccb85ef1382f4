"""What contrastive training returns."""

from dataclasses import dataclass

from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.results import Result
from truncate_kit.training.trials import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveResult(Result):
    """The outcome of `finetune_contrastive`; scores are Spearman in points, means over seeds (…_std: None with one)."""

    model: str
    rows: str  # what was learned from, in words
    num_rows: int  # how many
    data: str  # the graded pairs of dev and test
    data_fingerprint: str
    settings: ContrastiveSettings
    epochs: int
    batch_size: int
    learning_rate: float
    layer: int  # blocks that are kept, of `depth`
    depth: int
    parameters: int  # all that is saved
    # One per seed, of all that were trained with these settings; their dev_scores are the looks at dev.
    trials: tuple[Trial, ...]
    chosen_seed: int  # best on dev; its weights were saved
    dev: float
    dev_std: float | None
    test: float | None  # None where the data has no test split
    test_std: float | None
    test_texts: int  # distinct texts of test
    seen: int  # how many of them are among the training texts
    processes: int  # that trained together
    seconds: float  # of all seeds
    rows_fingerprint: str | None = None  # None in results of versions that did not note it
    seen_before: str = ""  # that the model had seen test pairs before, in words; nothing where it had not

    @property
    def seen_sentences(self) -> tuple[str, ...]:
        """What training and the model before it had seen of test; nothing where they had seen nothing."""
        seen = f"{self.seen:,} of {self.test_texts:,} distinct test texts are among the training texts."
        return (*([seen] if self.seen else []), *([self.seen_before] if self.seen_before else []))

    @property
    def chosen(self) -> Trial:
        """The trial whose weights were saved."""
        return next(trial for trial in self.trials if trial.seed == self.chosen_seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights(Result):
    """How much each layer counts in the vector of each text: rows sum to 1; index 0 = embeddings."""

    model: str
    texts: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
