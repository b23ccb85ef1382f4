"""Which blocks a budget takes: what is tried, what learns, and what is saved."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.errors import LayerNotHeldError, UsageError
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.agreement import held_out_scores
from truncate_kit.methods.distill.frontier import Scored, measure_frontier, time_blocks, timed_on, with_earlier
from truncate_kit.methods.distill.learning import Learning, run_name
from truncate_kit.methods.distill.notes import (
    note_of_busy,
    note_of_lengths,
    note_of_measure,
    note_of_unlearned,
    note_of_unmeasured,
    note_of_words,
)
from truncate_kit.methods.distill.result import (
    Blocks,
    Candidate,
    DistillResult,
    Frontier,
    FrontierPoint,
    Sizes,
    Student,
    SubsetSearch,
    Tryout,
    best_tryout,
    megabytes_of,
)
from truncate_kit.methods.distill.settings import Budget
from truncate_kit.methods.distill.subsets import check_blocks, compare_blocks, search_subsets
from truncate_kit.models import Encoder, keep, keep_words, save_encoder
from truncate_kit.models.saving import origin_of
from truncate_kit.origin import RESULT_FILES
from truncate_kit.report.card import distill_card
from truncate_kit.seen import NO_KEYS, Keys, keys_of, merged, query_keys
from truncate_kit.training.cutting import VocabularyCut, cut_vocabulary
from truncate_kit.training.evaluators import choosing_queries
from truncate_kit.training.store import RunStore
from truncate_kit.wording import counted

SMALLER = (
    "Give more `megabytes`; most of a small model is its vocabulary, which `keep_words()` cuts, and its eight-bit "
    'graph is about a quarter of the size: `export_onnx(settings=ExportSettings(precision="int8"))`.'
)


def check_budget(budget: Budget, encoder: Encoder, layer: int | None = None) -> None:
    """Say before any work what blocks no lean model that learns the vectors of `layer`, None the last, can have.

    Raises `ModelError` for a model of which none can be left out, `LayerOutOfRangeError` for a block that it lacks, and
    `UsageError` for a number of blocks, or for blocks behind the layer.
    """
    check_blocks(encoder, budget.named_blocks)
    if layer is not None and (behind := [block for block in budget.named_blocks or () if block > layer]):
        hint = f"Give `blocks` up to {layer}, or leave out `layer`."
        raise UsageError(f"Block {behind[0]} lies behind layer {layer}, whose vectors are learned.", hint=hint)
    most = encoder.depth - 1 if layer is None else min(layer, encoder.depth - 1)
    number = len(budget.named_blocks or ()) or int(budget.blocks or 0)
    if budget.kind == "blocks" and not 0 < number <= most:
        hint = f"Give `blocks` from 1 to {most}."
        raise UsageError(f"No lean model has {counted(number, 'block')}.", hint=hint)


def check_size(budget: Budget, encoder: Encoder) -> None:
    """Raise `UsageError` where the smallest choice of blocks takes more than `megabytes`, before any work."""
    if budget.kind != "megabytes":
        return
    smallest = min(megabytes_of(model.num_parameters) for model in _smallest(encoder))
    if smallest > (budget.megabytes or 0):
        raise UsageError(f"The smallest choice of blocks takes {smallest:.1f} megabytes.", hint=SMALLER)


def _smallest(encoder: Encoder) -> list[Encoder]:
    """What keeps the fewest blocks that an ordinary checkpoint can hold."""
    found: list[Encoder] = []
    for size in range(1, encoder.depth + 1):
        for blocks in combinations(range(1, encoder.depth + 1), size):
            with suppress(LayerNotHeldError):
                found.append(keep(encoder, blocks, copy_weights=False))
        if found:
            break
    return found


def within_limit(candidates: Sequence[Candidate], budget: Budget) -> Candidate:
    """The candidate with the most blocks that `blocks`, `speedup` or `megabytes` allow. Raises `UsageError`."""
    full = candidates[-1]
    if budget.kind == "blocks":
        wanted = len(budget.named_blocks or ()) or int(budget.blocks or 0)
        fitting = [row for row in candidates[:-1] if len(row.blocks) == wanted]
        problem = f"No lean model has {counted(wanted, 'block')}"
        hint = f"Give `blocks` from {len(candidates[0].blocks)} to {len(candidates) - 1}."
    elif budget.kind == "speedup":
        wanted_rate = (budget.speedup or 0) * full.texts_per_second
        fitting = [row for row in candidates[:-1] if row.texts_per_second >= wanted_rate]
        fastest = max(row.texts_per_second for row in candidates)
        problem = (
            f"The fastest choice of blocks is {fastest / full.texts_per_second:.1f} times as fast as the full model"
        )
        eight_bits = 'export_onnx(settings=ExportSettings(precision="int8"))'
        hint = f"Give a smaller `speedup`; `{eight_bits}` makes any of them faster."
    else:
        fitting = [row for row in candidates[:-1] if row.megabytes <= (budget.megabytes or 0)]
        problem = f"The smallest choice of blocks takes {candidates[0].megabytes:.1f} megabytes"
        hint = SMALLER
    if not fitting:
        raise UsageError(f"{problem}.", hint=hint)
    return fitting[-1]


def graph_within(frontier: Frontier, budget: Budget, needed: float | None) -> FrontierPoint | None:
    """The graph that the budget takes of a frontier; None where none keeps it, or where it names blocks.

    That is the fastest one that has the score `needed`, the shortest and smallest of equals, or the one with the
    highest score that is as fast or as small as asked for; speed 1 is the full model's graph in float32.
    """
    points, full = frontier.points, frontier.points[0]
    if budget.kind == "within":
        fitting = [one for one in points if one.score >= (needed or 0.0)]
        return max(fitting, key=lambda one: (one.texts_per_second, -one.dims, -one.megabytes, one.score), default=None)
    if budget.kind == "speedup":
        fitting = [one for one in points if one.texts_per_second >= (budget.speedup or 0) * full.texts_per_second]
    else:
        limit = budget.megabytes if budget.kind == "megabytes" else 0.0
        fitting = [one for one in points if one.megabytes <= (limit or 0.0)]
    return max(
        fitting,
        key=lambda one: (round(one.score, 2), one.texts_per_second, -one.dims, -one.megabytes),
        default=None,
    )


def closest(candidates: Sequence[Candidate], learned: Mapping[Blocks, float]) -> Blocks:
    """The candidate with the highest score after learning, the smaller of equals; `learned` may hold other blocks."""
    known = [row.blocks for row in candidates if row.blocks in learned]
    return max(known, key=lambda blocks: (learned[blocks], -len(blocks)))


def marked(rows: list[Candidate]) -> tuple[Candidate, ...]:
    """The rows, marked where another one is as good and as fast, and better in one of the two.

    Scores before and after learning say nothing of each other; that of the full model, the last row, counts among
    both.
    """
    full = rows[-1]

    def beaten(row: Candidate) -> bool:
        return any(
            other.score >= row.score
            and other.texts_per_second >= row.texts_per_second
            and (other.score, other.texts_per_second) != (row.score, row.texts_per_second)
            for other in rows
            if full in (row, other) or (row.learned is None) == (other.learned is None)
        )

    return tuple(replace(row, dominated=beaten(row)) for row in rows)


class FewerWords:
    """The vocabulary of a lean model.

    The full model keeps its own: its vectors are what is learned, and what the lean model is compared with, which reads
    the same texts in the pieces that it has left.

    Raises `ModelError` where the vocabulary of `encoder` cannot be cut.

    Args:
        texts: Whose pieces are kept.
    """

    def __init__(self, encoder: Encoder, texts: Sequence[str]) -> None:
        self._texts = texts
        self.smallest, _ = cut_vocabulary(encoder, texts)
        self.spared = encoder.num_parameters - self.smallest.num_parameters

    def of(self, lean: Encoder) -> tuple[Encoder, VocabularyCut]:
        """A copy of the lean model that keeps them alone."""
        return cut_vocabulary(lean, self._texts)

    def unseen(self, lean: Encoder, reported: Collection[str]) -> Encoder:
        """The lean model as it would be had no piece been kept for the texts that it is measured by."""
        return keep_words(lean, [text for text in self._texts if text not in reported])


AGREEMENT_PER_POINT = 3.0
"""Points of agreement that stand for a point of score: lean models of all-MiniLM-L6-v2 with agreements of 93.9 to 99.1
lost less than a third of what they disagreed by on STS Benchmark and in the mean of STS12, 14, 15 and SICK-R, a single
block nearly half of it, and searches of abstracts 0.2 to 1.9 times as much (benchmarks/lean)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is chosen by, and where it is saved.

    Attributes:
        budget: Which size.
        out: Gets `lean/` and `full/`.
        before: What the model card says was done to the full model before.
        words: What the lean model keeps of the vocabulary; None for all.
        searches: Has what does not depend on how students learn: scores without training, and speeds.
        chosen_by: The pairs as they were given; None where there are none.
        left_out: How many of their test pairs the full model had seen, in words.
    """

    budget: Budget
    out: Path
    before: str
    words: FewerWords | None
    searches: RunStore
    chosen_by: PairSplits | None
    left_out: tuple[str, ...]


class Distillation(Learning):
    """One distillation, as the process that leads sees it."""

    def run(self, wanted: Wanted) -> DistillResult:
        """Search, learn, choose, measure, save."""
        budget, out = wanted.budget, wanted.out
        search, candidates = self._search(wanted), self._sizes(wanted)
        chosen, holds = self._choose(candidates, wanted)
        untrained = next(row.untrained for row in candidates if row.blocks == chosen)
        whole = self._learn(chosen, weights=True)
        self.group.agree(None)  # there is no more to help with
        lean, words, student = self._saved(whole, wanted.words)
        students = tuple(student if one.blocks == chosen else one for one in self.runs.all(Student).values())
        frontier = self._frontier(students, chosen, budget)
        needed = self._needed(budget) if budget.kind == "within" else None
        chosen_by = wanted.chosen_by if isinstance(self.data, PairSplits) and self.data.dev else None
        result = DistillResult(
            model=self.encoder.name,
            depth=self.encoder.depth,
            before=wanted.before,
            metric=self.metric,
            full_score=self.full_score,
            budget=budget,
            settings=self.settings,
            learning_rate=self._rate(chosen),
            texts=self.texts.counts,
            search=search,
            tryouts=tuple(self.runs.all(Tryout).values()),
            candidates=marked([self._after_learning(row, students, chosen) for row in candidates]),
            students=students,
            chosen=chosen,
            holds=holds,
            needed=needed,
            scores=held_out_scores(self.encoder, lean, self.data, self._queries),
            notes=(
                *wanted.left_out,
                *note_of_unlearned(whole, untrained),
                *note_of_busy(self._others_busy),
                *note_of_words(whole, student),
                *note_of_measure(self.encoder),
                *note_of_lengths(self.data, self.evaluator, self.texts.counts),
                *note_of_unmeasured(frontier, students),
            ),
            frontier=frontier,
            graph=None if frontier is None else graph_within(frontier, budget, needed),
            vocabulary=words,
            data_fingerprint="" if chosen_by is None else chosen_by.fingerprint(),
        ).compared()
        save_encoder(self.encoder, out / "full", origin=origin_of("copy", self.encoder, self.encoder))
        lean.seen = merged(self.encoder.seen, self._chose())
        origin = origin_of(
            "distill",
            self.encoder,
            lean,
            blocks=chosen,
            data=chosen_by,
            seed=self.settings.seed,
            pieces=None if words is None else (words.pieces, words.full_pieces),
            long=self.texts.counts.long,
            settings=self.settings.to_dict() | budget.to_dict(),
        )
        records = {Path(RESULT_FILES["distill"]).name: result.sealed_text()}
        save_encoder(lean, out / "lean", model_card=distill_card(result).text(lean), origin=origin, records=records)
        self.runs.forget_weights({run_name(chosen)})
        return result

    def _chose(self) -> Keys:
        """The keys of the pairs or the queries by which blocks and epochs were chosen."""
        if isinstance(self.data, RetrievalSet):
            return query_keys(choosing_queries(self.data))
        return NO_KEYS if self.data is None or self.data.dev is None else keys_of(self.data.dev)

    def _saved(self, student: Student, words: FewerWords | None) -> tuple[Encoder, VocabularyCut | None, Student]:
        """What a student is saved as, what is left of its vocabulary, and the student with an agreement without words.

        That is the one with the pieces which texts need that do not report it.
        """
        lean = self.runs.encoder(run_name(student.blocks), self.encoder.device)
        if words is None:
            return lean, None, student
        # Texts that chose the pieces keep their vectors: the agreement is that of pieces chosen without these.
        measured = words.unseen(lean, frozenset(self.texts.read(self._reported)))
        vectors = measured.encode_ids(self.texts.ids_for(measured, self._reported))
        lean, kept = words.of(lean)
        return lean, kept, replace(student, agreement=self._report.agreement_of(vectors))

    def _search(self, wanted: Wanted) -> SubsetSearch:
        """All subsets; where the blocks are named, these alone with what simpler rules keep, for nothing is chosen."""
        named, store = wanted.budget.named_blocks, wanted.searches
        name = "subsets" if named is None else f"sub{run_name(named)}"
        if (found := store.read(name, SubsetSearch)) is not None:
            return found
        if named is not None:
            return store.write(name, compare_blocks(self.teacher, self.evaluator, named))
        return store.write(name, search_subsets(self.teacher, self.evaluator, progress=self.progress))

    def _sizes(self, wanted: Wanted) -> list[Candidate]:
        """The best subset of each size, with the blocks that were named in the place of theirs; timed once."""
        search = self._search(wanted)
        rows = {len(row.blocks): row for row in search.best}
        known = {row.blocks: row.score for row in rows.values() if search.num_texts is None}  # else of other texts
        named = wanted.budget.named_blocks
        name = f"sizes-{timed_on(self.encoder)}" + ("" if named is None else "-" + "-".join(map(str, named)))
        found = wanted.searches.read(name, Sizes)
        if found is None:
            blocks = {size: row.blocks for size, row in rows.items()} | ({len(named): named} if named else {})
            blocks[self.encoder.depth] = tuple(range(1, self.encoder.depth + 1))
            kept = [keep(self.encoder, subset, copy_weights=False) for subset in blocks.values()]
            timings, busy = time_blocks(self.encoder, list(blocks.values()), self._choose_ids, progress=self.progress)
            speedups = timings.speedup_intervals(-1)  # the full model comes last
            candidates = tuple(
                Candidate(
                    blocks=subset,
                    untrained=known[subset] if subset in known else self.evaluator.score(model)[0],
                    learned=None,
                    texts_per_second=rate,
                    parameters=model.num_parameters,
                    agreement=self._report.agreement(model),
                    interval=self._interval(model),
                    speedup_interval=speedup,
                )
                for subset, model, rate, speedup in zip(
                    blocks.values(), kept, timings.texts_per_second, speedups, strict=True
                )
            )
            found = Sizes(candidates=candidates, others_busy=busy)
            if (busy or 0.0) <= QUIET:  # else the next call times them anew
                wanted.searches.write(name, found)
        self._others_busy = found.others_busy
        spared = 0 if wanted.words is None else wanted.words.spared
        *lean, full = found.candidates
        return [*(replace(row, parameters=row.parameters - spared) for row in lean), full]

    def _choose(self, candidates: list[Candidate], wanted: Wanted) -> tuple[Blocks, bool]:
        """The blocks of the lean model, and whether it keeps within the budget; settles `candidates` that learn."""
        budget = wanted.budget
        if budget.kind != "within":
            taken = within_limit(candidates, budget)
            settled = candidates[candidates.index(taken)] = self._settled(taken, wanted)
            return settled.blocks, True
        # Scores rise with the number of blocks, but for noise: halving finds the first that holds in few runs.
        low, high, best = 0, len(candidates) - 2, None
        while low <= high:
            middle = (low + high) // 2
            settled = candidates[middle] = self._settled(candidates[middle], wanted)
            if self._learn(settled.blocks).best >= self._needed(budget):
                best, high = middle, middle - 1
            else:
                low = middle + 1
        if best is None:
            tried = {student.blocks: student.best for student in self.runs.all(Student).values()}
            return closest(candidates[:-1], tried), False
        return candidates[best].blocks, True

    def _needed(self, budget: Budget) -> float:
        """The score that keeps `within`."""
        return self.full_score - budget.points * (AGREEMENT_PER_POINT if self._by_agreement else 1.0)

    def _settled(self, row: Candidate, wanted: Wanted) -> Candidate:
        """The row with those of its leading subsets that learn best from few texts.

        What a subset gives without training does not tell how well it learns: of two blocks of all-MiniLM-L6-v2, 5 and
        6 agree best with the full model untrained, and 1 and 6 by a point after 1,800 texts (benchmarks/lean).
        """
        search = self._search(wanted)
        leading = [one for one in search.leading if len(one.blocks) == len(row.blocks)]
        if len(wanted.budget.named_blocks or ()) == len(row.blocks) or len(leading) < 2 or self._few is None:
            return row
        if search.num_texts is not None:  # what learns is scored on all texts
            leading = [
                replace(one, score=self.evaluator.score(keep(self.encoder, one.blocks, copy_weights=False))[0])
                for one in leading
            ]
        best = best_tryout([self._tryout(one) for one in leading])
        interval = self._interval(keep(self.encoder, best.blocks, copy_weights=False))
        return replace(row, blocks=best.blocks, untrained=best.untrained, interval=interval)

    def _interval(self, model: Encoder) -> tuple[float, float] | None:
        """Of the score without training by labels; agreement has an interval of its own."""
        if self._by_agreement:
            return None
        return self.evaluator.interval_of(model.encode_ids(self.evaluator.texts()))

    def _after_learning(self, row: Candidate, students: Sequence[Student], chosen: Blocks) -> Candidate:
        """The row with those of its size that learned best, in this run or an earlier one; the chosen ones stay."""
        same = [one for one in students if len(one.blocks) == len(row.blocks)]
        if len(row.blocks) == len(chosen):
            same = [one for one in same if one.blocks == chosen]
        if not same:
            return row
        best = max(same, key=lambda one: (one.best, one.blocks == row.blocks))
        if best.blocks != row.blocks:
            lean = keep(self.encoder, best.blocks, copy_weights=False)
            row = replace(
                row, blocks=best.blocks, untrained=self.evaluator.score(lean)[0], interval=self._interval(lean)
            )
        return replace(row, learned=best.best if best.scores else None, agreement=best.agreement)

    def _frontier(self, students: Sequence[Student], chosen: Blocks, budget: Budget) -> Frontier | None:
        """Of the full model and all students that were ever measured; once for a budget, if asked for.

        Later runs have the weights of the chosen one alone, and take what was measured when there were more.
        """
        asked = [float(budget.points), None] if budget.kind == "within" else [getattr(budget, budget.kind)]
        if budget.points != 1:  # None is what the default was called
            asked = asked[:1]
        place = timed_on(self.encoder)
        names = [f"frontier-{place}-{budget.kind}-{one}-{run_name(chosen)}" for one in asked]
        found = next((kept for kept in (self.runs.read(name, Frontier) for name in names) if kept is not None), None)
        if found is not None or not self.settings.frontier:
            return found
        held = [one.blocks for one in students if self.runs.has_weights(run_name(one.blocks))]
        learned = sorted(held, key=len, reverse=True)
        every = tuple(range(1, self.encoder.depth + 1))
        encoders = [(blocks, self.runs.encoder(run_name(blocks), self.encoder.device)) for blocks in learned]
        models = [(every, self.encoder), *encoders]
        scored = Scored(self.evaluator, self._reread, self._report, self._reported)
        measured = measure_frontier(models, scored, self.texts, self._held_out, progress=self.progress)
        earlier = [one for name, one in self.runs.all(Frontier).items() if name.startswith(f"frontier-{place}-")]
        return self.runs.write(names[0], with_earlier(measured, earlier))
