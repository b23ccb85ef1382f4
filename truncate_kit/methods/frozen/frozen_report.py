"""What training frozen heads found."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from truncate_kit.data import Overlap
from truncate_kit.methods.frozen.settings import AUTOENCODER, FrozenSettings
from truncate_kit.results import Result
from truncate_kit.statistics import Span
from truncate_kit.training.trials import BaseTrial


def frozen_name(step: str, layer: int, seed: int) -> str:
    """What the records and files of a trial are called."""
    return f"{step}-blocks{layer:02d}-seed{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTrial(BaseTrial):
    """Heads of one step on the lowest `layer` blocks with one seed; correlations × 100."""

    step: str  # one of `STEPS`
    # Spearman on test of the cosine of the codes at each block alone, None where it is not defined
    blocks: tuple[float | None, ...]
    parameters: int

    @property
    def name(self) -> str:
        """What its records and files are called."""
        return frozen_name(self.step, self.layer, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction(Result):
    """The autoencoders: width of the codes and mean squared error on held-out sentences, both by block from 1."""

    code_widths: tuple[int, ...]
    losses: tuple[float, ...]  # of standardised states: 1 is what predicting the mean costs
    num_sentences: int  # raw ones, the held-out tenth included
    left_out: int  # sentences of the file that are also in dev or test and were not used
    seconds: float
    # The same errors in the states' own units; None in results of versions that did not note them
    own_losses: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPair(Result):
    """A test pair; target and predicted score from 0 to 1."""

    first: str
    second: str
    target: float
    predicted: float
    error: float  # predicted − target − the mean difference on dev


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenReport(Result):
    """The outcome of `finetune_frozen`."""

    model: str
    data: str
    data_fingerprint: str
    settings: FrozenSettings
    pooling: str
    depth: int  # blocks of the model as it came
    width: int
    parameters: int  # of the saved model without its heads
    num_texts: int
    # Spearman × 100 on test of the cosine of plain states by block, None where undefined
    states: tuple[float | None, ...]
    trials: tuple[FrozenTrial, ...]
    chosen_step: str  # with the next two: the trial that was saved
    chosen_layer: int
    chosen_seed: int
    reconstruction: Reconstruction | None  # None where no autoencoders were trained
    nli: str | None  # name of the NLI pairs, None without
    worst: tuple[WorstPair, ...]  # the test pairs with the largest errors of the saved model
    overlap: Overlap  # what the splits share
    seconds: float
    notes: tuple[str, ...]
    # `states` of the training pairs (the paper's figure 1), None in reports of versions that did not note them
    train_states: tuple[float | None, ...] | None = None
    test_sentences_in_nli: int | None = None  # distinct test sentences that the NLI pairs hold, None without NLI pairs

    def of(self, step: str, layer: int) -> list[FrozenTrial]:
        """The trials of a step on this number of blocks, one per seed."""
        return [trial for trial in self.trials if (trial.step, trial.layer) == (step, layer)]

    @property
    def chosen(self) -> FrozenTrial:
        """The trial whose heads were saved."""
        return next(trial for trial in self.of(self.chosen_step, self.chosen_layer) if trial.seed == self.chosen_seed)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Every step and number of lowest blocks that was tried, in order."""
        return tuple(dict.fromkeys((trial.step, trial.layer) for trial in self.trials))

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """The numbers of lowest blocks that were tried by step, rising."""
        return {step: tuple(layer for of, layer in self.groups if of == step) for step, _ in self.groups}

    @property
    def num_seeds(self) -> int:
        """Most trials of one step and number of blocks."""
        return max(len(self.of(*group)) for group in self.groups)

    def score(self, step: str, layer: int, measure: str) -> Span:
        """`dev`, `dev_pearson`, `test` or `test_pearson` over the seeds."""
        return Span.of([float(getattr(trial, measure)) for trial in self.of(step, layer)])

    def codes_by_block(self, step: str, layer: int) -> tuple[float | None, ...]:
        """Mean over the seeds of `FrozenTrial.blocks`."""
        columns = zip(*(trial.blocks for trial in self.of(step, layer)), strict=True)
        return tuple(None if None in column else fmean(value or 0.0 for value in column) for column in columns)

    @property
    def plain(self) -> str:
        """What the states of the last block of the saved model score on test, in words: what heads have to beat."""
        score = self.states[self.chosen_layer - 1]
        said = "have no score" if score is None else f"have {score:.2f}"
        return f"the states of block {self.chosen_layer} as they are {said}"

    def leakage(self) -> str:
        """What test shares with all that the heads were trained on."""
        found = self.overlap.warning() or "Overlap: train and test share no sentence."
        if self.test_sentences_in_nli is None:
            return found
        total = self.overlap.test_sentences or 0
        return f"{found} NLI: {self.test_sentences_in_nli:,} of the {total:,} distinct test sentences."

    def statements(self) -> tuple[str, ...]:
        """What the user has to know about what was done."""
        used = max(trial.layer for trial in self.trials)
        norm = " and the final norm" if self.settings.final_norm else ""
        found = [
            f"The model is frozen: {self.pooling}-pooled states of blocks 1 to {used} of {self.depth}{norm}, "
            f"{self.num_texts:,} texts, each read once."
        ]
        if self.reconstruction is not None:
            codes = sorted(set(self.reconstruction.code_widths))
            found.append(
                f"Autoencoders: {self.reconstruction.num_sentences:,} raw sentences "
                f"({self.reconstruction.left_out:,} left out that are in dev or test), codes of "
                f"{' and '.join(map(str, codes))} numbers for states of {self.width}."
            )
        if self.nli is not None:
            found.append("The heads were trained on the classes of NLI pairs first.")
        if AUTOENCODER in self.steps and self.num_seeds > 1:
            found.append("The autoencoders were trained once, with the first seed; the heads with every seed.")
        return (*found, *self.notes)


def choose(trials: Sequence[FrozenTrial]) -> FrozenTrial:
    """Best mean dev Spearman over seeds by step and blocks, fewer blocks on a tie; there the seed best on dev."""
    groups: dict[tuple[str, int], list[FrozenTrial]] = {}
    for trial in trials:
        groups.setdefault((trial.step, trial.layer), []).append(trial)
    best = max(groups.values(), key=lambda group: (sum(one.dev for one in group) / len(group), -group[0].layer))
    return max(best, key=lambda trial: (trial.dev, -trial.seed))
