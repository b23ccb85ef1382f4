"""What a distillation found. Importing this imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from truncate_kit.core.precisions import Precision
from truncate_kit.core.results import Result
from truncate_kit.core.wording import too_few
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.training.cutting import VocabularyCut

Blocks = tuple[int, ...]
NEAR = 10
"""Nearest neighbours of a text; as many texts drawn at random stand beside them."""
LEADING = 4
"""Subsets of one size that may learn better than the best one without training (benchmarks/lean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCounts(Result):
    """What was read.

    Attributes:
        num_texts: Distinct texts that are learned from or held out.
        num_queries: How many of them are queries; they come first.
        repeated: Texts that had been read before.
        excluded: Texts left out because an evaluation set holds them.
        tokens: Of all texts, special tokens included.
        middle: Tokens of the text in the middle.
        long: Tokens of the text that 95 of 100 do not pass.
        cut: Texts that are longer than the model takes.
        compared: Distinct texts of evaluation sets that were looked for among all that was read.
    """

    num_texts: int
    num_queries: int
    repeated: int
    excluded: int
    tokens: int
    middle: int
    long: int
    cut: int
    compared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetScore(Result):
    """A subset of blocks and its score without training, in points."""

    blocks: Blocks
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSearch(Result):
    """The subsets that were tried: all of them, those of a beam, or the blocks that were named.

    Attributes:
        best: The best subset of each number of blocks, the smallest first; the last is the full model.
        leading: Up to `LEADING` subsets of each number of blocks, the best first; these may change places in learning.
        baselines: By the names of `baseline_blocks`: what each would keep, for the same numbers of blocks.
        tried: Number of subsets.
        exact: Whether these are all subsets that an ordinary checkpoint can hold.
        seconds: The search took.
        num_texts: How many texts they were scored on, cut short, where all texts would have taken too long; else None.
    """

    best: tuple[SubsetScore, ...]
    leading: tuple[SubsetScore, ...]
    baselines: dict[str, tuple[SubsetScore, ...]]
    tried: int
    exact: bool
    seconds: float
    num_texts: int | None = None

    def simpler(self, rule: str, row: SubsetScore) -> float | None:
        """The score of what a rule keeps of as many blocks as `row`; None where no checkpoint can hold that."""
        return next((one.score for one in self.baselines[rule] if len(one.blocks) == len(row.blocks)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Result):
    """Agreement with the full model on held-out text.

    Attributes:
        correlation: Spearman × 100 between the cosines of both models, over each text with its `NEAR` nearest texts by
            the full model and as many drawn at random; 100 is the full model itself.
        low: Lower end of its 95 % interval, by a bootstrap over texts.
        high: The upper end.
        overlap: Share × 100 of the `NEAR` nearest texts of each text that both models have in common.
        num_texts: Held-out texts.
        overlap_low: Lower end of the 95 % interval of the overlap, by the same bootstrap.
        overlap_high: The upper end.
    """

    correlation: float
    low: float
    high: float
    overlap: float
    num_texts: int
    overlap_low: float | None = None
    overlap_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tryout(Result):
    """One subset after learning from few texts, in points: what tells subsets of one size apart.

    Attributes:
        blocks: The blocks of the full model that it keeps.
        untrained: Its score before.
        learned: And after.
        overlap: Share × 100 of nearest texts in common with the full model where `best` was scored; None where labels
            choose.
        low: Lower end of the 95 % interval of that agreement; None likewise.
    """

    blocks: Blocks
    untrained: float
    learned: float
    overlap: float | None = None
    low: float | None = None

    @property
    def best(self) -> float:
        """The score that counts."""
        return max(self.untrained, self.learned)


def best_tryout(tryouts: Sequence[Tryout]) -> Tryout:
    """The one that is to learn from all texts: where labels choose, that with the highest score.

    Else, of those whose agreement is not below the interval of the highest, the one with most nearest texts in common:
    these tell apart what agreement does not (benchmarks/lean).
    """
    first = max(tryouts, key=lambda one: one.best)
    alike = [one for one in tryouts if first.low is not None and one.best >= first.low]
    return max(alike, key=lambda one: one.overlap or 0.0, default=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScores(Result):
    """Scores on what nothing was chosen by, in points.

    Attributes:
        data: Name of the set.
        metric: Spearman × 100, or nDCG@10.
        lean: The lean model's.
        full: The full model's.
        mixed: Of lean queries on the full model's document vectors; None for pairs.
        difference: Lean − full.
        low: Lower end of its 95 % interval, by a paired bootstrap over pairs or queries.
        high: The upper end.
        num_compared: Number of the pairs or queries.
        queries_fingerprint: Of the queries, half of which chose; empty for pairs.
    """

    data: str
    metric: str
    lean: float
    full: float
    mixed: float | None
    difference: float
    low: float
    high: float
    num_compared: int | None = None
    queries_fingerprint: str = ""

    @property
    def of_queries(self) -> bool:
        """Whether queries were compared, of which the other half may have chosen."""
        return not self.metric.startswith("Spearman")

    @property
    def too_few(self) -> str | None:
        """That no interval over so few says which model is better; None where they are enough, or not counted."""
        return too_few(self.num_compared, *(("query", "queries") if self.of_queries else ("pair", "pairs")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint(Result):
    """One way to serve: a graph, and how many dimensions of its vectors are kept.

    Attributes:
        blocks: Of the full model.
        precision: Of the graph.
        dims: First dimensions of the vectors that are kept.
        words: Pieces of the vocabulary.
        score: Of the graph's vectors, in points, by the metric of the distillation.
        texts_per_second: Measured side by side with all other graphs.
        megabytes: The graph's files, 10⁶ bytes each.
        dominated: Whether another point is at least as good, fast, small and short, and better in one of these; scores
            count in hundredths.
        agreement: On the texts for the report; None where another point beats it.
        interval: The 95 % interval of `score`, as in `Candidate`; None where agreement chooses.
        speedup_interval: The 95 % interval of the speed against the full model's float32 graph, by a bootstrap over
            rounds.
    """

    blocks: Blocks
    precision: Precision
    dims: int
    words: int
    score: float
    texts_per_second: float
    megabytes: float
    dominated: bool = False
    agreement: Agreement | None = None
    interval: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None

    @property
    def graph(self) -> tuple[Blocks, Precision, int]:
        """Blocks, precision and words: points of one graph differ in their dimensions."""
        return self.blocks, self.precision, self.words

    def beats(self, other: "FrontierPoint") -> bool:
        """Whether it is nowhere worse, and better somewhere; scores are compared in hundredths, as they are printed.

        What lies behind the printed digits is noise of the graph's arithmetic, and nobody could see why a row stays.
        """
        mine, theirs = ((round(one.score, 2), one.texts_per_second, -one.megabytes, -one.dims) for one in (self, other))
        return mine != theirs and all(ours >= its for ours, its in zip(mine, theirs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier(Result):
    """All points, the largest models first.

    Attributes:
        points: The full model's in float32 first.
        words: Pieces that the texts use that were learned from, with what every tokenizer needs; None where the
            tokenizer can spare none.
        all_words: Pieces of the full model's vocabulary.
        covered: Share × 100 of held-out texts whose pieces all stand in the other texts; they keep their vectors.
        seconds: Exporting and measuring.
    """

    points: tuple[FrontierPoint, ...]
    words: int | None
    all_words: int
    covered: float
    seconds: float


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
        agreement: On the texts for the report, after learning where it learned.
        interval: The 95 % interval of `untrained`, by a bootstrap over the pairs or queries for choosing; None where
            agreement chooses, which has one of its own.
        speedup_interval: The 95 % interval of the speed against the full model, by a bootstrap over rounds of timing.
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
        data_fingerprint: Of the pairs that were given to choose and report by; empty where none chose.
        frontier: Graphs in two precisions, dimensions and words, of the full model and all that learned; None where
            neither this run nor an earlier one with the same budget was asked for it.
        graph: The point of it that the budget takes: the fastest that keeps `within`, or the best that `speedup` or
            `megabytes` allow; None where there is none, or blocks were named.
        vocabulary: What the lean model keeps of the word pieces, which are dropped behind learning; None for all.
        all_words: The chosen blocks' agreement with all word pieces; None where none were dropped.
        data: Name of what chose or was reported; empty where nothing was given.
        data_tokens: Tokens that 95 of 100 of its texts do not pass; None where nothing was given.
        num_seen: Test pairs that were left out because the full model had seen them.
        others_busy: Share of the machine that other processes took while sizes were timed; None where nothing says so.
        measure: By what the full model compares vectors where their lengths count; else `cosine`.
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
    frontier: Frontier | None = None
    graph: FrontierPoint | None = None
    holds_unseen: bool | None = None
    data_fingerprint: str = ""
    vocabulary: VocabularyCut | None = None
    all_words: Agreement | None = None
    data: str = ""
    data_tokens: int | None = None
    num_seen: int = 0
    others_busy: float | None = None
    measure: str = "cosine"

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

    def compared(self) -> "DistillResult":
        """Return the same with `holds_unseen`."""
        holds, scores = None, self.scores
        if self.needed is not None and self.metric == f"agreement with {taught_by(self.settings)}":
            holds = self.student.agreement.correlation >= self.needed
        elif self.needed is not None and scores is not None and self.settings.layer is None and scores.too_few is None:
            holds = scores.difference >= -self.budget.points  # scores are against the whole model, not a layer of it
        return replace(self, holds_unseen=holds)
