"""Distillation from end to end: texts, vectors, blocks, learning, choice, the saved model."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.errors import DataError, TruncateKitError, UsageError
from truncate_kit.core.files import local_path, unfinished
from truncate_kit.core.hardware import QUIET, OtherWork
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import ProgressOption, reporter
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.data.seen import NO_KEYS, Keys, keys_of, merged, query_keys, without_seen
from truncate_kit.methods.distill.frontier import (
    TIMED_TEXTS,
    mark_dominated,
    measure_frontier,
    merged_graphs,
    side_by_side,
    timed_on,
)
from truncate_kit.methods.distill.learning import Learning, held_out_scores, read_vectors, run_name, teacher_vectors
from truncate_kit.methods.distill.settings import (
    LOWEST_TAUGHT,
    Blocks,
    Budget,
    DistillResult,
    DistillSettings,
    LeanModel,
    Measured,
    SubsetSearch,
    megabytes_of,
    within_limit,
)
from truncate_kit.methods.distill.subsets import check_blocks, is_held, search_subsets
from truncate_kit.methods.distill.texts import FOLDER, RawTexts, TextStore, store_texts, teacher_of
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.store import RunStore, origin_of, output_folder, run_key
from truncate_kit.models.truncation import keep, keep_words
from truncate_kit.training.cutting import VocabularyCut, cut_vocabulary
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.queries import check_queries, choosing_queries
from truncate_kit.training.tasks import scored_as

FEWEST_TESTED = 3  # pairs that have a correlation
AGREEMENT_PER_POINT = 3.0
"""Per point of score: lean models lost less than a third of their disagreement on STS (benchmarks/lean)."""


def check_budget(budget: Budget, encoder: Encoder, layer: int | None = None) -> None:
    """Refuse, before any work, blocks that no lean model with the vectors of `layer` (by default the last) can have.

    Raises `ModelError`, `LayerOutOfRangeError` or `UsageError`.
    """
    check_blocks(encoder, budget.named_blocks)
    if layer is not None and (behind := [block for block in budget.named_blocks or () if block > layer]):
        hint = f"Give `blocks` up to {layer}, or leave out `layer`."
        raise UsageError(f"Block {behind[0]} lies behind layer {layer}, the one that is learned.", hint=hint)
    most = encoder.depth - 1 if layer is None else min(layer, encoder.depth - 1)
    if budget.blocks is not None and not 0 < budget.number <= most:
        hint = f"Give `blocks` from 1 to {most}."
        raise UsageError(f"No lean model has {counted(budget.number, 'block')}.", hint=hint)


def check_size(megabytes: float, encoder: Encoder) -> None:
    """Raise `UsageError` if the smallest choice of blocks takes more megabytes."""
    every = range(1, encoder.depth + 1)
    held = ([one for one in combinations(every, size) if is_held(encoder, one)] for size in every)
    smallest = next(filter(None, held))
    least = megabytes_of(min(keep(encoder, one, copy_weights=False).num_parameters for one in smallest))
    if least > megabytes:
        raise UsageError(
            f"The smallest choice of blocks takes {least:.1f} megabytes.",
            hint="Give more `megabytes`; most of a small model is its vocabulary, which `keep_words()` cuts, and its "
            'int8 graph is a quarter of the size: `export_onnx(settings=ExportSettings(precision="int8"))`.',
        )


class Distillation(Learning):
    """One distillation in the leading process; `searches` holds what does not depend on how students learn."""

    def __init__(self, *learning: Any, budget: Budget, vocabulary: Sequence[str] | None, searches: RunStore) -> None:
        super().__init__(*learning)
        self.budget, self.vocabulary, self.searches = budget, vocabulary, searches
        self.needed: float | None = None
        if budget.within is not None:
            self.needed = self.full_score - budget.within * (AGREEMENT_PER_POINT if self.by_agreement else 1.0)

    def run(self, out: Path, *, before: str, chosen_by: PairSplits | None, num_seen: int) -> DistillResult:
        """Search, learn, choose, measure, and save `lean/` and `full/` in `out`.

        before: earlier changes to the full model. chosen_by: pairs as given. num_seen: test pairs it had seen.
        """
        candidates, others_busy = self._sizes()
        chosen = self._choose(candidates)
        whole = self.learn(chosen, weights=True)
        self.group.agree(None)  # ends `help`
        lean, words, student = self._saved(whole)
        students = [student if row.blocks == chosen else row for row in self.recorded("blocks")]
        frontier, covered = self._frontier(chosen)
        measured = {row.blocks for row in frontier}
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
            tryouts=tuple(self.recorded("tryout")),
            candidates=mark_dominated(self._after_learning(row, students, chosen) for row in candidates),
            chosen=chosen,
            holds=self.needed is None or whole.score >= self.needed,
            needed=self.needed,
            scores=held_out_scores(self.encoder, lean, self.data, self.queries),
            frontier=frontier,
            covered=covered,
            unmeasured=tuple(row.blocks for row in students if frontier and row.blocks not in measured),
            vocabulary=words,
            all_words=None if words is None else whole.agreement,
            data="" if self.data is None else self.data.name,
            data_tokens=None if self.data is None else int(np.quantile(list(map(len, self.evaluator.texts())), 0.95)),
            data_fingerprint="" if chosen_by is None else chosen_by.fingerprint(),
            num_seen=num_seen,
            others_busy=others_busy,
            measure="cosine" if normalized else self.encoder.settings.get("similarity_fn_name") or "cosine",
        )
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
            long=self.texts.counts["long"],
            settings=self.settings.to_dict() | self.budget.to_dict(),
        )
        records = {Path(RESULT_FILES["distill"]).name: result.sealed_text()}
        save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin, records=records)
        self.runs.forget_weights({run_name(chosen)})
        return result

    def _chose(self) -> Keys:
        if isinstance(self.data, RetrievalSet):
            return query_keys(choosing_queries(self.data))
        return NO_KEYS if self.data is None or self.data.dev is None else keys_of(self.data.dev)

    def _saved(self, student: LeanModel) -> tuple[Encoder, VocabularyCut | None, LeanModel]:
        """Return the model to save, the cut of its vocabulary, and the student with its agreement after the cut.

        The reporting texts give no pieces for that agreement.
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
        """Score all subsets, or only the named blocks and what simpler rules keep."""
        blocks = self.budget.named_blocks
        name = "subsets" if blocks is None else f"sub{run_name(blocks)}"
        known = self.searches.read(name, SubsetSearch)
        return known or self.searches.write(
            name, search_subsets(self.teacher, self.evaluator, blocks=blocks, progress=self.progress)
        )

    def _sizes(self) -> tuple[list[LeanModel], float | None]:
        """Return the best or named subset of each size, timed once; and the load of other processes."""
        search, named = self._search, self.budget.named_blocks
        scores = dict(search.best) if search.num_texts is None else {}  # else of other texts
        name = f"sizes-{timed_on(self.encoder)}" + ("" if named is None else "-" + "-".join(map(str, named)))
        measured = self.searches.read(name, Measured)
        if measured is None:
            blocks = {len(best): best for best, _ in search.best} | ({len(named): named} if named else {})
            blocks[self.encoder.depth] = tuple(range(1, self.encoder.depth + 1))
            models = [self.view(subset) for subset in blocks.values()]
            ids, others = self.texts.ids_at(self.choosing[:TIMED_TEXTS]), OtherWork()
            runs = [partial(model.encode_ids, ids) for model in models]
            speeds, busy = side_by_side(runs, len(ids), reference=-1, progress=self.progress), others.share()
            rows = []
            for subset, model, (rate, ends) in zip(blocks.values(), models, speeds, strict=True):
                size, agreement = megabytes_of(model.num_parameters), self.report.agreement(model)
                row = LeanModel(blocks=subset, score=0.0, texts_per_second=rate, megabytes=size, agreement=agreement)
                rows.append(self._scored(replace(row, speedup_interval=ends), subset, scores.get(subset)))
            measured = Measured(rows=tuple(rows), others_busy=busy)
            if (busy or 0.0) <= QUIET:  # else timed anew
                self.searches.write(name, measured)
        spared = 0.0
        if self.vocabulary is not None:
            smaller = keep_words(self.teacher, self.vocabulary).num_parameters
            spared = megabytes_of(self.teacher.num_parameters - smaller)
        *lean, full = measured.rows
        return [*(replace(row, megabytes=row.megabytes - spared) for row in lean), full], measured.others_busy

    def _scored(self, row: LeanModel, blocks: Blocks, score: float | None = None) -> LeanModel:
        model = self.view(blocks)
        if score is None:
            score = self.evaluator.score(model)[0]
        ends = None if self.by_agreement else self.evaluator.interval_of(model.encode_ids(self.evaluator.texts()))
        return replace(row, blocks=blocks, score=score, untrained=score, interval=ends)

    def _choose(self, candidates: list[LeanModel]) -> Blocks:
        """Return the lean model's blocks; settle the `candidates` that learn."""
        if self.needed is None:
            taken = within_limit(candidates, self.budget)
            settled = candidates[candidates.index(taken)] = self._settled(taken)
            return settled.blocks
        # Scores rise with the number of blocks, but for noise.
        low, high, tried = 0, len(candidates) - 2, list[LeanModel]()
        while low <= high:
            middle = (low + high) // 2
            settled = candidates[middle] = self._settled(candidates[middle])
            tried.append(self.learn(settled.blocks))
            if tried[-1].score >= self.needed:
                high = middle - 1
            else:
                low = middle + 1
        held = [row for row in tried if row.score >= self.needed]
        return (held[-1] if held else max(tried, key=lambda row: (row.score, -len(row.blocks)))).blocks

    def _settled(self, row: LeanModel) -> LeanModel:
        """Replace the row's blocks by the leading subset that learns best from few texts.

        Untrained scores do not tell: blocks 5 and 6 of all-MiniLM-L6-v2 lead, 1 and 6 learn better (benchmarks/lean).
        """
        leading = [one for one in self._search.leading if len(one[0]) == len(row.blocks)]
        if len(self.budget.named_blocks or ()) == len(row.blocks) or len(leading) < 2 or self.few is None:
            return row
        if self._search.num_texts is not None:  # what learns is scored on all texts
            leading = [(blocks, self.evaluator.score(self.view(blocks))[0]) for blocks, _ in leading]
        best = best_tryout([self.try_out(*one) for one in leading])
        return self._scored(row, best.blocks, best.untrained)

    def _after_learning(self, row: LeanModel, students: Sequence[LeanModel], chosen: Blocks) -> LeanModel:
        """Take the blocks of the row's size that learned best in any run; the chosen ones stay."""
        same = [student for student in students if len(student.blocks) == len(row.blocks)]
        if len(row.blocks) == len(chosen):
            same = [student for student in same if student.blocks == chosen]
        if not same:
            return row
        best = max(same, key=lambda student: (student.score, student.blocks == row.blocks))
        if best.blocks != row.blocks:
            row = self._scored(row, best.blocks)
        learned = replace(row, scores=best.scores, agreement=best.agreement, steps=best.steps, seconds=best.seconds)
        return replace(learned, score=best.score) if best.scores else learned

    def _frontier(self, chosen: Blocks) -> tuple[tuple[LeanModel, ...], float | None]:
        """Measure the full model and new students with weights, if asked for; return all graphs and `Measured.covered`.

        Without the option, return graphs only if the chosen model is among them.
        """
        place = f"graphs-{timed_on(self.encoder)}-"
        measured = [one for name, one in self.runs.all(Measured).items() if name.startswith(place)]
        known = {row.blocks for one in measured for row in one.rows}
        if self.settings.frontier:
            students = {row.blocks: run_name(row.blocks) for row in self.recorded("blocks")}
            new = [blocks for blocks, name in students.items() if blocks not in known and self.runs.has_weights(name)]
            if new:
                encoders = [(tuple(range(1, self.encoder.depth + 1)), self.encoder)]
                for blocks in sorted(new, key=len, reverse=True):
                    encoders.append((blocks, self.runs.encoder(students[blocks], self.encoder.device)))
                name = place + run_name(new[0])
                measured.append(self.runs.write(name, measure_frontier(encoders, self)))
        elif chosen not in known:
            return (), None
        return merged_graphs(measured), measured[-1].covered


def best_tryout(tryouts: Sequence[LeanModel]) -> LeanModel:
    """Return the best tryout: by score, without labels by overlap within its interval (benchmarks/lean)."""
    first = max(tryouts, key=lambda row: row.score)
    if first.agreement is None:
        return first
    alike = [row for row in tryouts if row.agreement and row.score >= first.agreement.low]
    return max(alike, key=lambda row: row.agreement.overlap if row.agreement else 0.0, default=first)


def find_aim(
    encoder: Encoder, texts: Iterable[str], budget: Budget | None = None, *, max_length: int | None = None
) -> tuple[int | None, DropPrediction | None]:
    """Return the layer to learn, for `DistillSettings`, and the drop that is predicted behind it.

    The layer precedes the drop and has the blocks of the budget; it is absent if these reach into the drop.

    Args:
        encoder: The full model.
        texts: Raw texts; the first `ANALYSED_TEXTS` are read.
        budget: As for `distill`.
        max_length: Tokens of the reference's texts.
    """
    budget = budget or Budget()
    check_budget(budget, encoder)  # a drop takes a minute
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

    A killed run continues with the same call and ends with the same model.

    Args:
        encoder: The full model; it is not changed.
        texts: Raw texts to learn from, as long as those to be served; texts of `data` are always left out.
        out: Gets `lean/` and `full/` (sentence-transformers folders), beside vectors and trials.
        budget: Wanted size; by default the fewest blocks within a point.
        settings: How students learn.
        data: Chooses instead of agreement, and is reported: dev and test of graded pairs, or two halves of the queries
            of a retrieval set.
        before: Earlier changes to `encoder`, for the model card.
        engine: Computes the full model's vectors; by default here.
        group: Processes that learn together; all must see `out`.
        progress: True draws bars and logs; else called as the work goes on.

    Raises:
        UsageError: The budget cannot be met, or `out` holds the model to start from.
        DataError: Too few texts, neither dev nor test, classes, or pairs without a defined correlation.
        ModelError: Vectors come from several layers, or no ordinary checkpoint can hold the blocks.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    out, budget, progress = local_path(out), budget or Budget(), reporter(progress)
    settings = settings or DistillSettings()
    teacher, (data, chosen_by, num_seen) = teacher_of(encoder, settings.layer), _divided(data, settings, encoder)
    raw = texts if isinstance(texts, RawTexts) else RawTexts(texts=texts)
    if isinstance(data, RetrievalSet):
        raw = replace(raw, exclude={*raw.exclude, *data.held_out})
        check_queries(data)
    elif data is not None:
        judged = [part.texts() for part in (data.dev, data.test) if part is not None]
        raw = replace(raw, exclude={*raw.exclude, *chain.from_iterable(judged)})
    # Report mistakes before the full model's vectors, which may take hours.
    check_budget(budget, encoder, None if teacher is encoder else teacher.depth)
    smallest = teacher if raw.vocabulary is None else keep_words(teacher, raw.vocabulary)
    if budget.megabytes is not None:
        check_size(budget.megabytes, smallest)
    with ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean", "full"))
            held.enter_context(unfinished((out / FOLDER).parent, shared=True))
            store = store_texts(teacher, raw, out / FOLDER, limit=settings.max_texts, progress=progress)
            beside = store.folder.parent / store.digest[:16]  # graph and vectors
            teacher_vectors(teacher, store, beside, engine=engine, progress=progress)
        group.agree(None)  # texts and vectors are there
        store = TextStore(out / FOLDER)
        vectors = read_vectors(store, store.folder.parent / store.digest[:16])
        runs, searches = _stores(out / "trials", encoder, store, settings, data, group)
        if group.leads:
            held.enter_context(runs.open())
            held.enter_context(searches.open())
        work = Distillation(
            *(encoder, teacher, store, vectors, settings, data, runs, group, progress),
            budget=budget,
            vocabulary=raw.vocabulary,
            searches=searches,
        )
        if group.leads:
            return group.agree(work.run(out, before=before, chosen_by=chosen_by, num_seen=num_seen))
        work.help()
        return cast(DistillResult, group.agree(None))


def _divided(
    data: PairSplits | RetrievalSet | None, settings: DistillSettings, encoder: Encoder
) -> tuple[PairSplits | RetrievalSet | None, PairSplits | None, int]:
    """Return pairs as the seed divides them, as given, and the number of seen test pairs, which are left out.

    Raises `DataError` if no pairs can choose or report.
    """
    if data is None or isinstance(data, RetrievalSet):
        return data, None, 0
    whole, data = data, splits_for(data, settings.seed)
    parts = [part for part in (data.dev, data.test) if part is not None]
    if not parts:
        hint = "Give a folder with dev and test files, or one file to be divided."
        raise DataError(f"{data.name} has neither dev nor test pairs, and no others are used here.", hint=hint)
    for part in parts:
        part.check_graded()
    kept, num_seen = without_seen(data, encoder.seen)
    if not num_seen or kept.test is None or data.test is None:
        return data, whole, 0
    if len(kept.test) < FEWEST_TESTED:
        return (None if data.dev is None else replace(kept, test=None)), whole, num_seen
    return kept, whole, num_seen


def _stores(
    folder: Path,
    encoder: Encoder,
    texts: TextStore,
    settings: DistillSettings,
    data: PairSplits | RetrievalSet | None,
    group: Group,
) -> tuple[RunStore, RunStore]:
    """Return two stores: of runs, by how students learn, and of scores and speeds before learning."""
    judged = "" if data is None else data.fingerprint() + scored_as(data, encoder)

    def key(kind: str, some: DistillSettings, *parts: str) -> str:
        # Both peak rates: defaults change.
        rates = [some.rate(encoder.width, left_out=share) for share in (1.0, 0.0)]
        return run_key(encoder, kind, f"{some.to_json()} {rates} {judged}", texts.digest, *parts)

    plain = replace(settings, frontier=False)
    usual = DistillSettings(layer=settings.layer, held_out=settings.held_out, seed=settings.seed)
    together = [str(group.size)] if group.size > 1 else []
    learning = RunStore(folder, key("distill", plain, *together), {"model": encoder.name, "distill": plain.to_dict()})
    return learning, RunStore(folder, key("search", usual), {"model": encoder.name})
