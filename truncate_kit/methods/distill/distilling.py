"""Distillation from end to end: texts, full vectors, which blocks, learning, the choice, the saved model."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.errors import DataError, LayerNotHeldError, TruncateKitError, UsageError
from truncate_kit.core.files import local_path, unfinished
from truncate_kit.core.hardware import QUIET, OtherWork
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import ProgressOption, reporter
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.data.seen import NO_KEYS, Keys, keys_of, merged, query_keys, without_seen
from truncate_kit.methods.distill.frontier import TIMED_TEXTS, measure_frontier, side_by_side, timed_on, with_earlier
from truncate_kit.methods.distill.learning import (
    Learning,
    held_out_scores,
    read_vectors,
    run_name,
    teacher_of,
    teacher_vectors,
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
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, Budget, DistillSettings
from truncate_kit.methods.distill.subsets import check_blocks, compare_blocks, search_subsets
from truncate_kit.methods.distill.texts import RawTexts, TextStore, store_texts
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Normalize, origin_of, save_encoder
from truncate_kit.models.store import RunStore, output_folder, run_key
from truncate_kit.models.truncation import keep, keep_words
from truncate_kit.training.cutting import VocabularyCut, cut_vocabulary
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.examples import check_queries, choosing_queries, scored_as

TEXTS = Path("distillation") / "texts"
FEWEST_TESTED = 3  # pairs of which there is a correlation
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
    held: list[float] = []  # by the fewest blocks that an ordinary checkpoint can hold
    for size in range(1, encoder.depth + 1):
        for blocks in combinations(range(1, encoder.depth + 1), size):
            with suppress(LayerNotHeldError):
                held.append(megabytes_of(keep(encoder, blocks, copy_weights=False).num_parameters))
        if held:
            break
    if min(held) > budget.megabytes:
        raise UsageError(
            f"The smallest choice of blocks takes {min(held):.1f} megabytes.",
            hint="Give more `megabytes`; most of a small model is its vocabulary, which `keep_words()` cuts, and its "
            f"eight-bit graph is about a quarter of the size: {INT8}.",
        )


def within_limit(candidates: Sequence[Candidate], budget: Budget) -> Candidate:
    """Return the candidate with the most blocks that `blocks`, `speedup` or `megabytes` allow. Raises `UsageError`."""
    *lean, full = candidates
    if budget.kind == "blocks":
        fitting = [row for row in lean if len(row.blocks) == budget.number]
    elif budget.speedup is not None:
        fitting = [row for row in lean if row.texts_per_second >= budget.speedup * full.texts_per_second]
    else:
        fitting = [row for row in lean if row.megabytes <= (budget.megabytes or 0.0)]
    if not fitting:
        fastest = max(row.texts_per_second for row in candidates) / full.texts_per_second
        raise UsageError(
            f"No choice of blocks keeps to that: they have {len(lean[0].blocks)} to {len(lean)} blocks, are up to "
            f"{fastest:.1f} times as fast as the full model and take {candidates[0].megabytes:.1f} megabytes or more.",
            hint=f"Ask for less; {INT8} makes any of them faster and a quarter as large.",
        )
    return fitting[-1]


def graph_within(frontier: Frontier, budget: Budget, needed: float | None) -> FrontierPoint | None:
    """Return the graph that the budget takes of a frontier; None where none keeps it, or where it names blocks.

    That is the fastest one that has the score `needed`, the shortest and smallest of equals, or the one with the
    highest score that is as fast or as small as asked for; speed 1 is the full model's graph in float32.
    """
    points, slowest = frontier.points, (budget.speedup or 0.0) * frontier.points[0].texts_per_second
    if budget.kind == "within":
        fitting = [one for one in points if one.score >= (needed or 0.0)]
        return max(fitting, key=lambda one: (one.texts_per_second, -one.dims, -one.megabytes, one.score), default=None)
    if budget.kind == "speedup":
        fitting = [one for one in points if one.texts_per_second >= slowest]
    else:
        fitting = [one for one in points if one.megabytes <= (budget.megabytes or 0.0)]
    return max(
        fitting, key=lambda one: (round(one.score, 2), one.texts_per_second, -one.dims, -one.megabytes), default=None
    )


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
            ids, others = self.texts.ids_at(self.choosing[:TIMED_TEXTS]), OtherWork()
            runs = [partial(model.encode_ids, ids) for model in kept]
            speeds, busy = side_by_side(runs, len(ids), reference=-1, progress=self.progress), others.share()
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
            known = [row.blocks for row in candidates[:-1] if row.blocks in tried]
            return max(known, key=lambda blocks: (tried[blocks], -len(blocks))), False
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


def find_aim(
    encoder: Encoder, texts: Iterable[str], budget: Budget | None = None, *, max_length: int | None = None
) -> tuple[int | None, DropPrediction | None]:
    """Return the layer before a predicted drop, or the first one that has the blocks which the budget names; and why.

    The layer is for `DistillSettings`, None the last one. The drop is None where none is predicted. A drop with no
    layer beside it: the blocks of the budget reach into it, and the vectors of the model's end are no good aim.

    Args:
        encoder: The full model.
        texts: Raw texts as for `distill`; the first `ANALYSED_TEXTS` are read.
        budget: As for `distill`.
        max_length: Of the reference's texts, in tokens.

    Raises:
        UsageError, ModelError, LayerOutOfRangeError: As `check_budget`, before anything is looked at. A model or texts
            that cannot be analysed predict nothing: what follows refuses them, or learns all the same.
    """
    budget = budget or Budget()
    check_budget(budget, encoder)  # looking for a drop takes a minute
    drop = None
    with suppress(TruncateKitError):
        from truncate_kit.analysis.profile import ANALYSED_TEXTS, predicted_drop

        drop = predicted_drop(encoder, list(islice(texts, ANALYSED_TEXTS)), max_length=max_length)
    if drop is None or drop.from_layer is None:
        return None, None
    layer = max(drop.from_layer - 1, LOWEST_TAUGHT, *(budget.named_blocks or [budget.number]))
    return (layer if layer < encoder.depth else None), drop


@isolated()
def distill(
    encoder: Encoder,
    texts: Iterable[str] | RawTexts,
    *,
    out: Path,
    budget: Budget | None = None,
    settings: DistillSettings | None = None,
    data: PairSplits | RetrievalSet | None = None,
    before: str = "",
    engine: Engine | None = None,
    group: Group = ALONE,
    progress: ProgressOption = False,
) -> DistillResult:
    """Find the smallest choice of blocks within a budget that gives the full model's vectors, and save it.

    A run that was killed continues with the same call and ends with the same model.

    Args:
        encoder: The full model; it is not changed.
        texts: Raw texts to learn from, as long as those to be served; `RawTexts` has queries and what to keep out.
            Texts of dev and test, and of a retrieval set, are always left out.
        out: Gets `lean/` and `full/` (sentence-transformers folders); vectors and trials lie beside them.
        budget: Which size; None is the fewest blocks within a point.
        settings: How the vectors are learned.
        data: What chooses instead of agreement with the full model, and what is reported: dev and test of
            graded pairs (of words as the seed divides them), or two halves of the queries of a retrieval set.
        before: What the model card says was done to `encoder` before.
        engine: Where the full model's vectors are computed; None is here.
        group: Processes that learn together; all must see `out`, the leading one alone reads and writes there.
        progress: True draws bars and logs; else what is called as the work goes on.

    Raises:
        UsageError: The budget cannot be met, or `out` holds the model to start from.
        DataError: Too few texts, neither dev nor test, classes, or pairs on which no correlation is defined.
        ModelError: Vectors are made from several layers, or no ordinary checkpoint can hold the blocks.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    out, budget, progress = local_path(out), budget or Budget(), reporter(progress)
    settings = settings or DistillSettings()
    teacher, (data, chosen_by, num_seen) = teacher_of(encoder, settings.layer), _divided(data, settings, encoder)
    raw = texts if isinstance(texts, RawTexts) else RawTexts(texts=texts)
    if isinstance(data, RetrievalSet):
        raw = replace(raw, exclude={*raw.exclude, *data.held_out})
    elif data is not None:
        judged = [part.texts() for part in (data.dev, data.test) if part is not None]
        raw = replace(raw, exclude={*raw.exclude, *chain.from_iterable(judged)})
    # All that can be wrong is said before the full model's vectors, which may take hours.
    check_budget(budget, encoder, None if teacher is encoder else teacher.depth)
    smallest = teacher if raw.vocabulary is None else cut_vocabulary(teacher, raw.vocabulary)[0]
    check_size(budget, smallest)
    if isinstance(data, RetrievalSet):
        check_queries(data)
    with ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean", "full"))
            held.enter_context(unfinished((out / TEXTS).parent, shared=True))
            store = store_texts(teacher, raw, out / TEXTS, limit=settings.max_texts, progress=progress)
            beside = store.folder.parent / store.digest[:16]  # the full model's graph and its vectors of these texts
            teacher_vectors(teacher, store, beside, engine=engine, progress=progress)
        group.agree(None)  # texts and vectors are there
        store = TextStore(out / TEXTS)
        vectors = read_vectors(teacher, store, store.folder.parent / store.digest[:16])
        runs, searches = _stores(out / "trials", encoder, store, settings, data, group)
        if group.leads:
            held.enter_context(runs.open())
            held.enter_context(searches.open())
        work = Distillation(
            *(encoder, teacher, store, vectors, settings, data, runs, group, progress),
            budget=budget,
            vocabulary=raw.vocabulary,
            spared=teacher.num_parameters - smallest.num_parameters,
            searches=searches,
        )
        result = work.run(out, before=before, chosen_by=chosen_by, num_seen=num_seen) if group.leads else work.help()
        return cast(DistillResult, group.agree(result))  # the leading process has one


def _divided(
    data: PairSplits | RetrievalSet | None, settings: DistillSettings, encoder: Encoder
) -> tuple[PairSplits | RetrievalSet | None, PairSplits | None, int]:
    """Return pairs as the seed divides them, the pairs as they were given, and the number of seen test pairs.

    Test pairs that the full model has seen are left out; of fewer than `FEWEST_TESTED` there is no test. Raises
    `DataError` where there is nothing to choose by.
    """
    if data is None or isinstance(data, RetrievalSet):
        return data, None, 0
    given, data = data, splits_for(data, settings.seed)
    parts = [part for part in (data.dev, data.test) if part is not None]
    if not parts:
        hint = "Give a folder with dev and test files, or one file to be divided."
        raise DataError(f"{data.name} has neither dev nor test pairs, and no others are used here.", hint=hint)
    for part in parts:
        part.check_graded()
    if data.test is None:
        return data, given, 0
    kept, known = without_seen(data, encoder.seen)
    if not known or kept.test is None:
        return data, given, 0
    if len(kept.test) >= FEWEST_TESTED:
        return kept, given, known
    return (None if kept.train is None and kept.dev is None else replace(kept, test=None)), given, known


def _stores(
    folder: Path,
    encoder: Encoder,
    texts: TextStore,
    settings: DistillSettings,
    data: PairSplits | RetrievalSet | None,
    group: Group,
) -> tuple[RunStore, RunStore]:
    """Return stores of what depends on how students learn, and of what does not: scores before it, and speeds."""
    found = []
    plain = replace(settings, frontier=False)
    usual = DistillSettings(layer=settings.layer, held_out=settings.held_out, seed=settings.seed)
    for kind, some in (("distill", plain), ("search", usual)):
        # The peak rates where many blocks go and where few do: defaults change.
        rates = [some.rate(encoder.width, left_out=share) for share in (1.0, 0.0)]
        judged = "" if data is None else data.fingerprint() + scored_as(data, encoder)
        parts = [f"{some.to_json()} {rates} {judged}", texts.digest]
        if kind == "distill" and group.size > 1:
            parts.append(str(group.size))
        description = {"model": encoder.name} | ({"distill": some.to_dict()} if kind == "distill" else {})
        found.append(RunStore(folder, run_key(encoder, kind, *parts), description))
    return found[0], found[1]
