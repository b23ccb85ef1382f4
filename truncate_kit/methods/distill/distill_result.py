"""What a distillation found: every size that was tried, the choice, and how like the full model it is."""

from dataclasses import dataclass, replace

from truncate_kit.blocks import blocks_in_words
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.distill.step_results import (
    Agreement,
    Blocks,
    Frontier,
    FrontierPoint,
    HeldOutScores,
    SubsetSearch,
    TextCounts,
    Tryout,
)
from truncate_kit.results import Result
from truncate_kit.training.cutting import VocabularyCut
from truncate_kit.wording import counted, in_points, with_interval


def taught_by(settings: DistillSettings) -> str:
    """Whose vectors are learned, in words."""
    return "the full model" if settings.layer is None else f"layer {settings.layer} of the full model"


def megabytes_of(parameters: int) -> float:
    """Size of weights in float32, in 10⁶ bytes."""
    return parameters * 4 / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Student(Result):
    """One subset after learning.

    Attributes:
        blocks: The blocks of the full model that it keeps.
        scores: On the texts or pairs for choosing, after each evaluation, in points; empty where nothing was to learn.
        best: The highest of them, or the one before learning where that is a point higher; its weights are kept.
        agreement: On the texts for the report, which nothing was chosen by; of the lean model as it is saved, without
            the word pieces that were dropped.
        steps: Optimiser steps.
        seconds: Learning and evaluation.
    """

    blocks: Blocks
    scores: tuple[float, ...]
    best: float
    agreement: Agreement
    steps: int
    seconds: float

    @property
    def as_it_came(self) -> bool:
        """Whether the blocks learned, and are kept with the weights from before."""
        return bool(self.scores) and self.best > max(self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Result):
    """One size: of the subsets of that number of blocks that learned the best one, else the best without training.

    Attributes:
        blocks: The subset; the chosen one stands for its size also where another one had learned better.
        untrained: Its score without training, in points.
        learned: Its score after learning; None where it did not learn.
        texts_per_second: In torch, measured side by side.
        parameters: Kept, pooler excluded.
        dominated: Whether another candidate that learned as well, or did not either, is at least as good and as fast,
            and better in one of the two; the full model counts among both.
        agreement: On the texts for the report, after learning where it learned; None where a file of an earlier
            version does not say.
        interval: The 95 % interval of `untrained`, by a bootstrap over the pairs or queries for choosing; None where
            agreement chooses, which has one of its own, and in files of earlier versions.
        speedup_interval: The 95 % interval of the speed against the full model, by a bootstrap over rounds of timing;
            None in files of earlier versions.
    """

    blocks: Blocks
    untrained: float
    learned: float | None
    texts_per_second: float
    parameters: int
    dominated: bool = False
    agreement: Agreement | None = None
    interval: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None

    @property
    def score(self) -> float:
        """After learning where it learned."""
        return self.untrained if self.learned is None else self.learned

    @property
    def megabytes(self) -> float:
        """Size of the weights in float32, in 10⁶ bytes."""
        return megabytes_of(self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Result):
    """One candidate of each number of blocks, the smallest first, the full model last.

    others_busy: Share of the machine that other processes took while these were timed; None where nothing says so.
    """

    candidates: tuple[Candidate, ...]
    others_busy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillResult(Result):
    """A distillation.

    Attributes:
        model: The full model.
        depth: Its number of blocks.
        before: What was done to it before, in words.
        metric: What scores of candidates are, in words.
        full_score: The teacher's own, which is the full model or its `settings.layer`; 100 where the score is agreement
            with it.
        budget: What was asked for.
        settings: How it learned.
        learning_rate: Peak rate.
        texts: What was learned from.
        search: Of subsets, before learning.
        tryouts: Subsets that learned from few texts, so that the best of their size would learn from all.
        candidates: By number of blocks, the full model last.
        students: Those that learned.
        chosen: The blocks of the lean model.
        holds: Whether the chosen one keeps within the budget.
        needed: The score after learning that keeps `within`; None for other budgets.
        holds_unseen: Whether it does on what chose nothing; None for other budgets, and where nothing says so.
        scores: On test pairs or the other half of the queries; None where neither was given.
        notes: Sentences that the user has to see.
        data_fingerprint: Of the pairs that were given to choose and report by; empty where none chose.
        frontier: Graphs in two precisions, dimensions and words, of the full model and all that learned; None where
            neither this run nor an earlier one with the same budget was asked for it.
        graph: The point of it that the budget takes: the fastest that keeps `within`, or the best that `speedup` or
            `megabytes` allow; None where there is none, or blocks were named.
        vocabulary: What the lean model keeps of the word pieces, which are dropped behind learning; None for all.
    """

    model: str
    depth: int
    before: str
    metric: str
    full_score: float
    budget: Budget
    settings: DistillSettings
    learning_rate: float
    texts: TextCounts
    search: SubsetSearch
    tryouts: tuple[Tryout, ...]
    candidates: tuple[Candidate, ...]
    students: tuple[Student, ...]
    chosen: Blocks
    holds: bool
    needed: float | None
    scores: HeldOutScores | None
    notes: tuple[str, ...]
    frontier: Frontier | None = None
    graph: FrontierPoint | None = None
    holds_unseen: bool | None = None
    data_fingerprint: str = ""
    vocabulary: VocabularyCut | None = None

    @property
    def student(self) -> Student:
        """The chosen one."""
        return next(student for student in self.students if student.blocks == self.chosen)

    @property
    def candidate(self) -> Candidate:
        """The chosen one among the candidates."""
        return next(row for row in self.candidates if row.blocks == self.chosen)

    @property
    def speedup(self) -> float:
        """Texts a second against the full model, in torch."""
        return self.candidate.texts_per_second / self.candidates[-1].texts_per_second

    @property
    def graph_sentence(self) -> str:
        """Which graph of the frontier the budget takes; empty where none was measured, or blocks were named."""
        if self.frontier is None or self.budget.kind == "blocks":
            return ""
        found, full, budget = self.graph, self.frontier.points[0], self.budget
        asked = {
            "within": f"Of the graphs that lose at most {in_points(budget.points)} the fastest",
            "speedup": f"Of the graphs that are {budget.speedup} times as fast as the full float32 one the best",
            "megabytes": f"Of the graphs of at most {budget.megabytes} MB the best",
        }[budget.kind]
        if found is None:
            return "No graph that was measured keeps the budget."
        speedup = with_interval(found.texts_per_second / full.texts_per_second, found.speedup_interval)
        score = f"{found.score:.2f}" + ("" if found.interval is None else " [{:.1f}, {:.1f}]".format(*found.interval))
        said = (
            f"{asked} has {blocks_in_words(found.blocks)} in {found.precision}, "
            f"{counted(found.dims, 'dimension')} and {counted(found.words, 'word')}: {speedup} times the texts a "
            f"second, {found.megabytes:.1f} MB, score {score}"
        )
        if (agreement := found.agreement) is not None:
            less = self._by_agreement and self.needed is not None and agreement.correlation < self.needed
            said += f"; agreement {agreement.sentence} on texts that nothing was chosen by"
            said += f", below {self.needed:.2f}" * less
        saved = f"Saved: {blocks_in_words(self.chosen)}; `blocks` saves others."
        return said + ("." if found.blocks == self.chosen else f". {saved}")

    @property
    def tryout_sentence(self) -> str:
        """How the choices of as many blocks as the lean model has learned from few texts; empty where none did."""
        size = len(self.chosen)
        tried = (one for one in self.tryouts if len(one.blocks) == size)
        rows = sorted(tried, key=lambda one: one.best, reverse=True)
        if not rows:
            return ""
        scores = "; ".join(one.sentence for one in rows)
        return f"Choices of {counted(size, 'block')} after learning from few texts – {scores}."

    @property
    def search_sentence(self) -> str:
        """How many choices of blocks were tried, and how."""
        search = self.search
        said = f"{counted(search.tried, 'choice')} of blocks tried without training in {search.seconds:.0f} s"
        if search.num_texts is not None:
            said += f", on {counted(search.num_texts, 'text')} that were cut short"
        named = self.budget.named_blocks is not None
        return said + ("." if search.exact else ": the ones named, and simpler rules." if named else ", by a beam.")

    @property
    def _by_agreement(self) -> bool:
        return self.metric == f"agreement with {taught_by(self.settings)}"

    @property
    def _unseen(self) -> tuple[float, bool] | None:
        """The score on what chose nothing, and whether it keeps `within`; None where there is none to compare."""
        if self.needed is None:
            return None
        if self._by_agreement:
            return (found := self.student.agreement.correlation), found >= self.needed
        if self.scores is not None and self.settings.layer is None and self.scores.too_few is None:  # else of others
            return self.scores.lean, self.scores.difference >= -self.budget.points
        return None

    def compared(self) -> "DistillResult":
        """The same with `holds_unseen`."""
        return replace(self, holds_unseen=None if (unseen := self._unseen) is None else unseen[1])

    @property
    def _missed(self) -> str:
        """That what chose the blocks was kinder to them than what reports is; empty where it was not."""
        unseen = self._unseen
        if not self.holds or unseen is None or unseen[1]:
            return ""
        found, _ = unseen
        chosen = f" They were chosen for {self.student.best:.2f} where {self.needed:.2f} were asked for"
        return f"{chosen}; {found:.2f} on what did not choose them loses more than {in_points(self.budget.points)}."

    @property
    def sentence(self) -> str:
        """The choice in words."""
        named, agreement = ", ".join(map(str, self.chosen)), self.student.agreement
        speedup = with_interval(self.speedup, self.candidate.speedup_interval)
        said = (
            f"{counted(len(self.chosen), 'block')} of {self.depth} ({named}), {speedup} times the texts a second: "
            f"agreement {agreement.sentence} with {taught_by(self.settings)} on texts that nothing was chosen by, "
            f"{agreement.in_common}."
        )
        if self.scores is not None:
            said += f" {self.scores.sentence}"
            if self.scores.mixed is not None:
                said += f" Lean queries on the full model's documents: {self.scores.mixed:.2f}."
        said += self._missed
        if not self.holds:
            wanted = f"{self.needed:.2f} that stand for {in_points(self.budget.points)} less"
            said += f" No cut reaches the {wanted}: this is the closest."
        return said
