"""Which blocks a budget takes: what is tried, what learns, and what is saved."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.errors import LayerNotHeldError, UsageError
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.agreement import held_out_scores
from truncate_kit.methods.distill.frontier import measure_frontier, time_models, timed_on, with_earlier
from truncate_kit.methods.distill.learning import Learning, run_name
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
from truncate_kit.models.pipeline import Normalize
from truncate_kit.models.saving import origin_of
from truncate_kit.origin import RESULT_FILES
from truncate_kit.seen import NO_KEYS, Keys, keys_of, merged, query_keys
from truncate_kit.store import RunStore
from truncate_kit.training.cutting import VocabularyCut, cut_vocabulary
from truncate_kit.training.evaluators import choosing_queries
from truncate_kit.wording import counted

AGREEMENT_PER_POINT = 3.0
"""Points of agreement that stand for a point of score: lean models of all-MiniLM-L6-v2 with agreements of 93.9 to 99.1
lost less than a third of what they disagreed by on STS Benchmark and in the mean of STS12, 14, 15 and SICK-R, a single
block nearly half of it, and searches of abstracts 0.2 to 1.9 times as much (benchmarks/lean)."""
INT8 = '`export_onnx(settings=ExportSettings(precision="int8"))`'


def check_budget(budget: Budget, encoder: Encoder, layer: int | None = None) -> None:
    """Refuse before any work what blocks no lean model that learns the vectors of `layer`, None the last, can have.

    Raises `ModelError` for a model of which none can be left out, `LayerOutOfRangeError` for a block that it lacks, and
    `UsageError` for a number of blocks, or for blocks behind the layer.
    """
    check_blocks(encoder, budget.named_blocks)
    if layer is not None and (behind := [block for block in budget.named_blocks or () if block > layer]):
        hint = f"Give `blocks` up to {layer}, or leave out `layer`."
        raise UsageError(f"Block {behind[0]} lies behind layer {layer}, whose vectors are learned.", hint=hint)
    most = encoder.depth - 1 if layer is None else min(layer, encoder.depth - 1)
    if budget.kind == "blocks" and not 0 < budget.number <= most:
        hint = f"Give `blocks` from 1 to {most}."
        raise UsageError(f"No lean model has {counted(budget.number, 'block')}.", hint=hint)


def check_size(budget: Budget, encoder: Encoder) -> None:
    """Raise `UsageError` where the smallest choice of blocks takes more than `megabytes`, before any work."""
    if budget.megabytes is None:
        return
    held: list[Encoder] = []  # of the fewest blocks that an ordinary checkpoint can hold
    for size in range(1, encoder.depth + 1):
        for blocks in combinations(range(1, encoder.depth + 1), size):
            with suppress(LayerNotHeldError):
                held.append(keep(encoder, blocks, copy_weights=False))
        if held:
            break
    if (smallest := min(megabytes_of(model.num_parameters) for model in held)) > budget.megabytes:
        raise _too_large(smallest)


def _too_large(smallest: float) -> UsageError:
    return UsageError(
        f"The smallest choice of blocks takes {smallest:.1f} megabytes.",
        hint="Give more `megabytes`; most of a small model is its vocabulary, which `keep_words()` cuts, and its "
        f"eight-bit graph is about a quarter of the size: {INT8}.",
    )


def within_limit(candidates: Sequence[Candidate], budget: Budget) -> Candidate:
    """Return the candidate with the most blocks that `blocks`, `speedup` or `megabytes` allow. Raises `UsageError`."""
    *lean, full = candidates
    if budget.kind == "blocks":
        fitting = [row for row in lean if len(row.blocks) == budget.number]
        hint = f"Give `blocks` from {len(lean[0].blocks)} to {len(lean)}."
        problem = UsageError(f"No lean model has {counted(budget.number, 'block')}.", hint=hint)
    elif budget.speedup is not None:
        fitting = [row for row in lean if row.texts_per_second >= budget.speedup * full.texts_per_second]
        fastest = max(row.texts_per_second for row in candidates) / full.texts_per_second
        problem = UsageError(
            f"The fastest choice of blocks is {fastest:.1f} times as fast as the full model.",
            hint=f"Give a smaller `speedup`; {INT8} makes any of them faster.",
        )
    else:
        fitting = [row for row in lean if row.megabytes <= (budget.megabytes or 0.0)]
        problem = _too_large(candidates[0].megabytes)
    if not fitting:
        raise problem
    return fitting[-1]


def graph_within(frontier: Frontier, budget: Budget, needed: float | None) -> FrontierPoint | None:
    """Return the graph that the budget takes of a frontier; None where none keeps it, or where it names blocks.

    That is the fastest one that has the score `needed`, the shortest and smallest of equals, or the one with the
    highest score that is as fast or as small as asked for; speed 1 is the full model's graph in float32.
    """

    def speed_first(one: FrontierPoint) -> tuple[float, ...]:
        return one.texts_per_second, -one.dims, -one.megabytes, one.score

    def score_first(one: FrontierPoint) -> tuple[float, ...]:
        return round(one.score, 2), one.texts_per_second, -one.dims, -one.megabytes

    points, slowest, best = frontier.points, (budget.speedup or 0.0) * frontier.points[0].texts_per_second, score_first
    if budget.kind == "within":
        fitting, best = [one for one in points if one.score >= (needed or 0.0)], speed_first
    elif budget.kind == "speedup":
        fitting = [one for one in points if one.texts_per_second >= slowest]
    else:
        fitting = [one for one in points if one.megabytes <= (budget.megabytes or 0.0)]
    return max(fitting, key=best, default=None)


def closest(candidates: Sequence[Candidate], learned: Mapping[Blocks, float]) -> Blocks:
    """Return the candidate with the highest score after learning, the smaller of equals; others are left aside."""
    known = [row.blocks for row in candidates if row.blocks in learned]
    return max(known, key=lambda blocks: (learned[blocks], -len(blocks)))


def marked(rows: list[Candidate]) -> tuple[Candidate, ...]:
    """Mark the rows that another one beats: as good and as fast, and better in one of the two.

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


class Distillation(Learning):
    """One distillation, as the process that leads sees it.

    Args:
        budget: Which size.
        vocabulary: Texts whose word pieces the lean model keeps; None for all.
        spared: Parameters that go with the other pieces.
        searches: Has what does not depend on how students learn: scores without training, and speeds.
        learning: For `Learning`.
    """

    def __init__(
        self, *learning: Any, budget: Budget, vocabulary: Sequence[str] | None, spared: int, searches: RunStore
    ) -> None:
        super().__init__(*learning)
        self.budget, self.vocabulary, self.spared, self.searches = budget, vocabulary, spared, searches
        self.needed: float | None = None
        if budget.kind == "within":
            self.needed = self.full_score - budget.points * (AGREEMENT_PER_POINT if self.by_agreement else 1.0)

    def run(self, out: Path, *, before: str, chosen_by: PairSplits | None, num_seen: int) -> DistillResult:
        """Search, learn, choose, measure and save.

        Args:
            out: Gets `lean/` and `full/`.
            before: What the model card says was done to the full model before.
            chosen_by: The pairs as they were given; None where there are none.
            num_seen: Number of their test pairs that the full model had seen.
        """
        candidates, others_busy = self._sizes()
        chosen, holds = self._choose(candidates)
        whole = self.learn(chosen, weights=True)
        self.group.agree(None)  # there is no more to help with
        lean, words, student = self._saved(whole)
        students = tuple(student if one.blocks == chosen else one for one in self.runs.all(Student).values())
        frontier = self._frontier(students, chosen)
        normalized = any(isinstance(module, Normalize) for module in self.encoder.tail)
        if self.data is None or isinstance(self.data, RetrievalSet) or self.data.dev is None:
            chosen_by = None
        result = DistillResult(
            model=self.encoder.name,
            depth=self.encoder.depth,
            before=before,
            metric=self.metric,
            full_score=self.full_score,
            budget=self.budget,
            settings=self.settings,
            learning_rate=self.rate(chosen),
            texts=self.texts.counts,
            search=self._search,
            tryouts=tuple(self.runs.all(Tryout).values()),
            candidates=marked([self._after_learning(row, students, chosen) for row in candidates]),
            students=students,
            chosen=chosen,
            holds=holds,
            needed=self.needed,
            scores=held_out_scores(self.encoder, lean, self.data, self.queries),
            frontier=frontier,
            graph=None if frontier is None else graph_within(frontier, self.budget, self.needed),
            vocabulary=words,
            all_words=None if words is None else whole.agreement,
            data="" if self.data is None else self.data.name,
            data_tokens=None if self.data is None else int(np.quantile(list(map(len, self.evaluator.texts())), 0.95)),
            num_seen=num_seen,
            others_busy=others_busy,
            measure="cosine" if normalized else self.encoder.settings.get("similarity_fn_name") or "cosine",
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
            settings=self.settings.to_dict() | self.budget.to_dict(),
        )
        records = {Path(RESULT_FILES["distill"]).name: result.sealed_text()}
        save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin, records=records)
        self.runs.forget_weights({run_name(chosen)})
        return result

    def _chose(self) -> Keys:
        """Return the keys of the pairs or the queries by which blocks and epochs were chosen."""
        if isinstance(self.data, RetrievalSet):
            return query_keys(choosing_queries(self.data))
        return NO_KEYS if self.data is None or self.data.dev is None else keys_of(self.data.dev)

    def _saved(self, student: Student) -> tuple[Encoder, VocabularyCut | None, Student]:
        """Return what a student is saved as, what is left of its vocabulary, and the student with its agreement then.

        That agreement is the one with the pieces which texts need that do not report it.
        """
        lean = self.runs.encoder(run_name(student.blocks), self.encoder.device)
        if self.vocabulary is None:
            return lean, None, student
        reporting = self.reporting.tolist()
        reported = frozenset(self.texts.read(reporting))
        measured = keep_words(lean, [text for text in self.vocabulary if text not in reported])
        vectors = measured.encode_ids(self.texts.ids_for(measured, reporting))
        return *cut_vocabulary(lean, self.vocabulary), replace(student, agreement=self.report.agreement_of(vectors))

    @cached_property
    def _search(self) -> SubsetSearch:
        """All subsets; where the blocks are named, these alone with what simpler rules keep, for nothing is chosen."""
        named = self.budget.named_blocks
        name = "subsets" if named is None else f"sub{run_name(named)}"
        if (found := self.searches.read(name, SubsetSearch)) is not None:
            return found
        if named is not None:
            return self.searches.write(name, compare_blocks(self.teacher, self.evaluator, named))
        return self.searches.write(name, search_subsets(self.teacher, self.evaluator, progress=self.progress))

    def _sizes(self) -> tuple[list[Candidate], float | None]:
        """Return the best subset of each size, the named blocks in the place of theirs; timed once.

        Beside them the share of the machine that others took while they were timed.
        """
        search, named = self._search, self.budget.named_blocks
        known = {row.blocks: row.score for row in search.best if search.num_texts is None}  # else of other texts
        name = f"sizes-{timed_on(self.encoder)}" + ("" if named is None else "-" + "-".join(map(str, named)))
        found = self.searches.read(name, Sizes)
        if found is None:
            blocks = {len(row.blocks): row.blocks for row in search.best} | ({len(named): named} if named else {})
            blocks[self.encoder.depth] = tuple(range(1, self.encoder.depth + 1))
            kept = [keep(self.encoder, subset, copy_weights=False) for subset in blocks.values()]
            speeds, busy = time_models(kept, self.texts.ids_at(self.choosing), self.progress)
            candidates = tuple(
                Candidate(
                    blocks=subset,
                    untrained=known[subset] if subset in known else self.evaluator.score(model)[0],
                    learned=None,
                    texts_per_second=rate,
                    parameters=model.num_parameters,
                    agreement=self.report.agreement(model),
                    interval=self._interval(model),
                    speedup_interval=interval,
                )
                for subset, model, (rate, interval) in zip(blocks.values(), kept, speeds, strict=True)
            )
            found = Sizes(candidates=candidates, others_busy=busy)
            if (busy or 0.0) <= QUIET:  # else the next call times them anew
                self.searches.write(name, found)
        *lean, full = found.candidates
        return [*(replace(row, parameters=row.parameters - self.spared) for row in lean), full], found.others_busy

    def _choose(self, candidates: list[Candidate]) -> tuple[Blocks, bool]:
        """Return the blocks of the lean model and whether it keeps the budget; settle the `candidates` that learn."""
        if self.needed is None:
            taken = within_limit(candidates, self.budget)
            settled = candidates[candidates.index(taken)] = self._settled(taken)
            return settled.blocks, True
        # Scores rise with the number of blocks, but for noise: halving finds the first that holds in few runs.
        low, high, best = 0, len(candidates) - 2, None
        while low <= high:
            middle = (low + high) // 2
            settled = candidates[middle] = self._settled(candidates[middle])
            if self.learn(settled.blocks).best >= self.needed:
                best, high = settled.blocks, middle - 1
            else:
                low = middle + 1
        if best is None:
            tried = {student.blocks: student.best for student in self.runs.all(Student).values()}
            return closest(candidates[:-1], tried), False
        return best, True

    def _settled(self, row: Candidate) -> Candidate:
        """Replace the row's blocks by those of its leading subsets that learn best from few texts.

        What a subset gives without training does not tell how well it learns: of two blocks of all-MiniLM-L6-v2, 5 and
        6 agree best with the full model untrained, and 1 and 6 by a point after 1,800 texts (benchmarks/lean).
        """
        leading = [one for one in self._search.leading if len(one.blocks) == len(row.blocks)]
        if len(self.budget.named_blocks or ()) == len(row.blocks) or len(leading) < 2 or self.few is None:
            return row
        if self._search.num_texts is not None:  # what learns is scored on all texts
            leading = [
                replace(one, score=self.evaluator.score(keep(self.encoder, one.blocks, copy_weights=False))[0])
                for one in leading
            ]
        best = best_tryout([self.try_out(one) for one in leading])
        interval = self._interval(keep(self.encoder, best.blocks, copy_weights=False))
        return replace(row, blocks=best.blocks, untrained=best.untrained, interval=interval)

    def _interval(self, model: Encoder) -> tuple[float, float] | None:
        """Return the bootstrap interval of the score without training by labels; agreement has one of its own."""
        return None if self.by_agreement else self.evaluator.interval_of(model.encode_ids(self.evaluator.texts()))

    def _after_learning(self, row: Candidate, students: Sequence[Student], chosen: Blocks) -> Candidate:
        """Take the blocks of the row's size that learned best, in this run or an earlier one; the chosen ones stay."""
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

    def _frontier(self, students: Sequence[Student], chosen: Blocks) -> Frontier | None:
        """Measure the full model and all students that have weights, if asked for; once for a budget.

        Later runs have the weights of the chosen one alone, and take what was measured when there were more.
        """
        budget, place = self.budget, f"frontier-{timed_on(self.encoder)}-"
        asked = budget.points if budget.kind == "within" else getattr(budget, budget.kind)
        name = f"{place}{budget.kind}-{asked}-{run_name(chosen)}"
        if (found := self.runs.read(name, Frontier)) is not None or not self.settings.frontier:
            return found
        held = [one.blocks for one in students if self.runs.has_weights(run_name(one.blocks))]
        encoders = [(tuple(range(1, self.encoder.depth + 1)), self.encoder)]
        for blocks in sorted(held, key=len, reverse=True):
            encoders.append((blocks, self.runs.encoder(run_name(blocks), self.encoder.device)))
        earlier = [one for known, one in self.runs.all(Frontier).items() if known.startswith(place)]
        return self.runs.write(name, with_earlier(measure_frontier(encoders, self), earlier))
