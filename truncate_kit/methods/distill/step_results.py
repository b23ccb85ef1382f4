"""What the steps of a distillation find. Importing this imports no torch: `status` and `report` read results only."""

from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit.precisions import Precision
from truncate_kit.results import Result
from truncate_kit.wording import counted, too_few, with_interval

Blocks = tuple[int, ...]
NEAR = 10
"""Nearest neighbours of a text; as many texts drawn at random stand beside them."""
SAID_CHANCE = 5
"""Share × 100 of nearest texts in common from which on it is said how many two unrelated models have."""
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
        compared: Distinct texts of evaluation sets that were looked for among all that was read; None where a file of
            an earlier version does not say.
    """

    num_texts: int
    num_queries: int
    repeated: int
    excluded: int
    tokens: int
    middle: int
    long: int
    cut: int
    compared: int | None = None

    @property
    def sentence(self) -> str:
        """What is learned from."""
        said = f"{self.num_texts:,} distinct texts, {self.middle} tokens in the middle, 95 of 100 at most {self.long}"
        said += f", {self.cut:,} cut at the model's length" if self.cut else ""
        return f"{said}; {self.exclusion}."

    @property
    def exclusion(self) -> str:
        """What became of texts that evaluation sets hold; whole texts are compared."""
        if self.compared is None:
            return f"{self.excluded:,} left out that stand in evaluation sets"
        if not self.compared:
            return "not compared with any evaluation set"
        found = f"{self.excluded:,} found and left out" if self.excluded else "none found"
        return f"{counted(self.compared, 'text')} of evaluation sets compared as whole texts, {found}"


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
        overlap_low: Lower end of the 95 % interval of the overlap, by the same bootstrap; None where a file of an
            earlier version does not say.
        overlap_high: The upper end.
    """

    correlation: float
    low: float
    high: float
    overlap: float
    num_texts: int
    overlap_low: float | None = None
    overlap_high: float | None = None

    @property
    def sentence(self) -> str:
        """The correlation with its interval."""
        return with_interval(self.correlation, (self.low, self.high))

    @property
    def in_common(self) -> str:
        """The overlap in words, with its interval."""
        interval = "" if self.overlap_low is None else f" [{self.overlap_low:.0f}, {self.overlap_high:.0f}]"
        chance = 100 * NEAR / (self.num_texts - 1)
        by_chance = f" (by chance {chance:.0f} %)" if chance >= SAID_CHANCE else ""
        return f"{self.overlap:.0f} %{interval} of nearest texts in common{by_chance}"


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

    @property
    def sentence(self) -> str:
        """Both scores where the one before learning counts, and nearest texts in common."""
        before = f" ({self.untrained:.2f} before, which counts)" if self.untrained > self.learned else ""
        common = "" if self.overlap is None else f", {self.overlap:.1f} % of nearest texts in common"
        return f"{', '.join(map(str, self.blocks))}: {self.learned:.2f}{before}{common}"


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
        num_compared: Number of the pairs or queries; None in files of earlier versions.
        queries_fingerprint: Of the queries, half of which chose; empty for pairs, and in files of earlier versions.
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

    @property
    def sentence(self) -> str:
        """Both scores, and their difference with its interval where there is one."""
        counted_queries = self.of_queries and self.num_compared
        some = f" of the {self.num_compared:,} queries that chose nothing" if counted_queries else ""
        both = f"{self.data}, {self.metric}{some}: {self.lean:.2f} against {self.full:.2f}, {self.difference:+.2f}"
        return f"{both}; {self.too_few}." if self.too_few else f"{both} [{self.low:+.2f}, {self.high:+.2f}]."


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
        agreement: On the texts for the report; None where another point beats it, and in files of earlier versions.
        interval: The 95 % interval of `score`, as in `Candidate`; None where agreement chooses.
        speedup_interval: The 95 % interval of the speed against the full model's float32 graph, by a bootstrap over
            rounds; None in files of earlier versions.
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
        points: The full model's in float32 first. In files of earlier versions points of fewer words have score and
            speed of those of all words, and the words of the texts of the score.
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
