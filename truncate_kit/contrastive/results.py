"""What contrastive training returns."""

from dataclasses import dataclass

from truncate_kit.contrastive.settings import ContrastiveSettings
from truncate_kit.results import Result
from truncate_kit.runs.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveResult(Result):
    """The outcome of `finetune_contrastive`.

    rows: what was learned from, in words; num_rows: how many; rows_fingerprint: which, None in results of versions that
    did not note it. data: the graded pairs of dev and test. layer: blocks
    that are kept, of `depth`. parameters: all that is saved. trials: one per seed; their dev_scores are the looks at
    dev. chosen_seed: best on dev; its weights were saved. dev, test: Spearman in points, means over the seeds; …_std:
    None with one seed. test is None where the data has no test split. test_texts: distinct texts of test; seen: how
    many of them are among the training texts. processes: that trained together. seconds: of all seeds.
    """

    model: str
    rows: str
    num_rows: int
    data: str
    data_fingerprint: str
    settings: ContrastiveSettings
    epochs: int
    batch_size: int
    learning_rate: float
    layer: int
    depth: int
    parameters: int
    trials: tuple[Trial, ...]
    chosen_seed: int
    dev: float
    dev_std: float | None
    test: float | None
    test_std: float | None
    test_texts: int
    seen: int
    processes: int
    seconds: float
    rows_fingerprint: str | None = None

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
