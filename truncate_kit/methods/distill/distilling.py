"""Distillation: store texts and vectors, search blocks, train, choose and save the lean model."""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError, counted, lasting
from truncate_kit.core.files import local_path, unfinished
from truncate_kit.core.hardware import precisions_for
from truncate_kit.core.progress import Engine, Progress, ProgressOption, announce, reporter, silent
from truncate_kit.core.vectors import RESAMPLES, Array, draws, interval
from truncate_kit.core.workspace import RESULT_FILES, VocabularyCut, listed
from truncate_kit.data.seen import NO_KEYS, merged
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder, bytes_of_rows, graph_files
from truncate_kit.methods.distill.learning import (
    FOLDER,
    AgreementEvaluator,
    RawTexts,
    StudentRun,
    TaughtTexts,
    TextStore,
    add_vectors,
    held_out_places,
    store_texts,
    student_run,
    teacher_of,
)
from truncate_kit.methods.distill.settings import (
    LOWEST_TAUGHT,
    TIMING_SECONDS,
    Blocks,
    Budget,
    DistillResult,
    DistillSettings,
    LeanModel,
    Measured,
    SubsetSearch,
    expected_seconds,
    mark_dominated,
    megabytes_of,
    merged_graphs,
    needed_agreement,
    races,
    within_limit,
)
from truncate_kit.methods.distill.subsets import announce_sizes, check_blocks, is_held, search_subsets
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.store import RunStore, origin_of, output_folder, run_key
from truncate_kit.models.truncation import (
    TIMED_TEXTS,
    keep,
    keep_pieces,
    keep_words,
    kept_pieces,
    operations,
    seconds_per_block,
)
from truncate_kit.training.loop import ALONE, Group, Ids, isolated, precision

if TYPE_CHECKING:
    from truncate_kit.analysis.result import DropPrediction
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.methods.distill.labels import Labels

LOST = 1.0  # points; if training lowers the score by more, the untrained blocks are saved
ROUNDS, MOST_ROUNDS = 5, 25  # small models' times are noisy
PRECISIONS = precisions_for("cpu")
SHARES = (1, 2, 4)  # divisors of a vector's width
AIMING_TEXTS = 500  # 2,000 gave the same layers for three miniatures and all-MiniLM-L6-v2
Speed = tuple[float, tuple[float, float]]  # texts per second; 95 % interval relative to the reference


def check_budget(budget: Budget, encoder: Encoder, layer: int | None = None) -> None:
    """Check that the budget's blocks are possible for the target `layer` (by default the last).

    Raises `ModelError`, `LayerOutOfRangeError` or `UsageError`.
    """
    check_blocks(encoder, budget.named_blocks)
    if layer is not None and (behind := [block for block in budget.named_blocks or () if block > layer]):
        hint = f"Give `blocks` up to {layer}, or leave out `layer`."
        raise UsageError(f"Block {behind[0]} comes after the target layer {layer}.", hint=hint)
    budget.check(encoder.depth, layer)


def check_size(megabytes: float, encoder: Encoder) -> None:
    """Raise `UsageError` if every one-block model exceeds `megabytes`."""
    single = [(block,) for block in range(1, encoder.depth + 1) if is_held(encoder, (block,))]
    least = megabytes_of(min((keep(encoder, one, copy_weights=False).num_parameters for one in single), default=0))
    if least > megabytes:
        raise UsageError(
            f"The smallest lean model takes {least:.1f} megabytes.",
            hint="Give more `megabytes`. Most of a small model is its vocabulary, which `keep_words()` cuts; an int8 "
            'graph is a quarter of the size: `export_onnx(settings=ExportSettings(precision="int8"))`.',
        )


def timed_on(encoder: Encoder) -> str:
    """Name the GPU, or `cpu` with its number of threads."""
    device = encoder.device
    if device.type == "cuda":
        return re.sub(r"\W+", "-", torch.cuda.get_device_name(device))
    return f"{device.type}-{torch.get_num_threads()}"


def side_by_side(
    runs: Sequence[Callable[[], object]],
    num_texts: int,
    *,
    reference: int,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = silent,
) -> list[Speed]:
    """Time all runs in each round, so that a disturbance slows all; each encodes `num_texts` texts.

    reference: index of the run of speed 1.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    started = clock()
    for round_ in range(MOST_ROUNDS + 1):
        if round_ > ROUNDS and clock() - started > TIMING_SECONDS:
            break
        for times, run in zip(seconds, runs, strict=True):
            begin = clock()
            run()
            if round_:  # the first warms up
                times.append(clock() - begin)
        progress("Timing", min(round_, ROUNDS), ROUNDS)
    return speeds(np.array(seconds), num_texts, reference)


def speeds(seconds: Array, num_texts: int, reference: int) -> list[Speed]:
    """Return each run's speed by median time, with an interval; seconds: (runs, rounds)."""
    rates = (num_texts / np.median(seconds, axis=1)).tolist()
    medians = np.median(seconds[:, np.stack(list(draws(seconds.shape[1], RESAMPLES)))], axis=2)
    return [(rate, interval(row)) for rate, row in zip(rates, medians[reference] / medians, strict=True)]


def run_name(blocks: Blocks) -> str:
    """Return a subset's name in stores."""
    return "blocks" + "-".join(map(str, blocks))


class Distillation:
    """A distillation in one process; the leading one of a group writes and selects.

    `searches` stores results that do not depend on training.
    """

    def __init__(
        self,
        encoder: Encoder,
        teacher: Encoder,
        out: Path,
        settings: DistillSettings,
        budget: Budget,
        *,
        labels: "Labels | None" = None,
        vocabulary: Sequence[str] | None = None,
        group: Group = ALONE,
        progress: Progress = silent,
    ) -> None:
        self.encoder, self.teacher, self.out = encoder, teacher, out
        self.texts = TextStore(out / FOLDER, settings.precision)
        self.settings, self.budget, self.labels, self.vocabulary = settings, budget, labels, vocabulary
        self.group, self.progress = group, progress
        self.choosing, self.reporting, self.learned_from = held_out_places(len(self.texts), settings)
        self.reporter, agreement_evaluator = (
            AgreementEvaluator(self.texts.ids_at(places), self.texts.vectors_at(places.tolist()))
            for places in (self.reporting, self.choosing)
        )
        judge = None if labels is None else labels.judge(encoder)
        self.by_agreement, self.evaluator = judge is None, judge or agreement_evaluator
        self.metric, self.full_score = settings.agreement, 100.0
        self._every = tuple(range(1, encoder.depth + 1))
        if labels is not None and judge is not None:
            self.metric, self.full_score = labels.metric, judge.score(teacher)[0]
        self.needed: float | None = None
        if budget.within is not None:
            by_score = self.full_score - budget.within
            self.needed = needed_agreement(budget.within) if self.by_agreement else by_score
        judged = "" if labels is None else labels.fingerprint

        def store(name: str, some: DistillSettings, *parts: str) -> RunStore:
            key = run_key(encoder, name, some.to_json(), judged, self.texts.digest, *parts)
            return RunStore(out / "trials", key, {"model": encoder.name, name: some.to_dict()})

        self.runs = store("distill", replace(settings, frontier=False), str(group.size))
        usual = DistillSettings(layer=settings.layer, held_out=settings.held_out, seed=settings.seed)
        self.searches = store("search", usual)

    def run(self, before: str) -> DistillResult:
        """Search, train, select, measure, and save `lean/` and `full/`; before: earlier changes to the full model."""
        labels, candidates = self.labels, self._sizes()
        chosen = self._choose(candidates)
        whole = self.learn(chosen, weights=True)
        self.group.agree(None)  # ends `follow` in the other processes
        lean, words, student = self._saved(whole)
        students = [student if row.blocks == chosen else row for row in self._recorded("blocks")]
        frontier, covered = self._frontier(chosen)
        chosen_by = None if labels is None else labels.chosen_by
        normalized = any(isinstance(module, Normalize) for module in self.encoder.tail)
        result = DistillResult(
            model=self.encoder.name,
            depth=self.encoder.depth,
            before=before,
            metric=self.metric,
            full_score=self.full_score,
            budget=self.budget,
            settings=self.settings,
            learning_rate=self._rate(chosen),
            texts=self.texts.counts,
            search=self._search,
            tryouts=tuple(self._recorded("race")),
            candidates=mark_dominated(
                self._timed((self._after_learning(row, students, chosen) for row in candidates), chosen)
            ),
            chosen=chosen,
            holds=self.needed is None or whole.score >= self.needed,
            needed=self.needed,
            scores=None if labels is None else labels.report(self.encoder, lean),
            frontier=frontier,
            covered=covered,
            vocabulary=words,
            all_words=None if words is None else whole.agreement,
            data="" if labels is None else labels.name,
            data_tokens=None if labels is None else int(np.quantile(list(map(len, self.evaluator.texts())), 0.95)),
            data_fingerprint="" if chosen_by is None else chosen_by.fingerprint(),
            num_seen=0 if labels is None else labels.num_seen,
            measure="cosine" if normalized else self.encoder.settings.get("similarity_fn_name") or "cosine",
        )
        save_encoder(self.encoder, self.out / "full", origin=origin_of("copy", self.encoder, self.encoder))
        lean.seen = merged(self.encoder.seen, NO_KEYS if labels is None else labels.seen())
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
        save_encoder(lean, self.out / "lean", model_card=result.card(lean, origin), origin=origin, records=records)
        self.runs.forget_weights({run_name(chosen)})
        return result

    def follow(self) -> None:
        """Train jointly with the leading process."""
        while (order := self.group.agree(None)) is not None:
            self._taught(*order)

    def _saved(self, student: LeanModel) -> tuple[Encoder, VocabularyCut | None, LeanModel]:
        """Return the model to save, its vocabulary cut, and its row.

        The row's agreement is that after a cut that did not see the report texts.
        """
        lean = self.runs.encoder(run_name(student.blocks), self.encoder.device)
        if self.vocabulary is None:
            return lean, None, student
        from truncate_kit.training.cutting import cut_vocabulary

        reporting = self.reporting.tolist()
        reported = frozenset(self.texts.read(reporting))
        measured = keep_words(lean, [text for text in self.vocabulary if text not in reported])
        vectors = measured.encode_ids(self.texts.ids_for(measured, reporting))
        return *cut_vocabulary(lean, self.vocabulary), replace(student, agreement=self.reporter.agreement_of(vectors))

    @cached_property
    def _search(self) -> SubsetSearch:
        """Search from all blocks down to the size that the budget asks for."""
        blocks, smallest = self.budget.named_blocks, self.budget.number or 1
        if self.budget.blocks is None and self.budget.within is None:
            sizes, held = {*range(1, self.teacher.depth), self.encoder.depth}, partial(is_held, self.encoder)
            some = (islice(filter(held, combinations(self._every, size)), 1) for size in sorted(sizes))
            first = list(chain.from_iterable(some))
            smallest = len(within_limit([self._row(one) for one in first], self.budget).blocks)
        name = f"subsets-{smallest}" if blocks is None else f"sub{run_name(blocks)}"
        known = self.searches.read(name, SubsetSearch)
        return known or self.searches.write(
            name,
            search_subsets(self.teacher, self.evaluator, blocks=blocks, smallest=smallest, progress=self.progress),
        )

    def _sizes(self) -> list[LeanModel]:
        """Return a row for each searched size, the full model last."""
        rows = [self._row(*found) for found in self._search.best]
        if self.teacher is not self.encoder:
            rows.append(self._row(self._every))
        return [*rows[:-1], self._scored(rows[-1], rows[-1].blocks)]

    @cached_property
    def _spared(self) -> int:
        """Count the parameters that a smaller vocabulary saves."""
        if self.vocabulary is None:
            return 0
        return self.teacher.num_parameters - keep_words(self.teacher, self.vocabulary).num_parameters

    def _row(self, blocks: Blocks, score: float = 0.0) -> LeanModel:
        spared = self._spared if len(blocks) < self.encoder.depth else 0
        length = float(self.texts.lengths()[self.choosing].mean())
        return LeanModel(
            blocks=blocks,
            score=score,
            pace=1e9 / operations(self.encoder, len(blocks), length),
            megabytes=megabytes_of(self._untrained(blocks).num_parameters - spared),
        )

    def _timed(self, rows: Iterable[LeanModel], chosen: Blocks) -> list[LeanModel]:
        """Time the chosen beside the full model."""
        name = f"timed-{timed_on(self.encoder)}-{run_name(chosen)}"
        if (measured := self.searches.read(name, Measured)) is None:
            ids, models = self.texts.ids_at(self.choosing[:TIMED_TEXTS]), (self._untrained(chosen), self.encoder)
            runs = [partial(model.encode_ids, ids) for model in models]
            timed = side_by_side(runs, len(ids), reference=-1, progress=self.progress)
            both = (
                LeanModel(blocks=blocks, score=0.0, texts_per_second=rate, speedup_interval=ends)
                for blocks, (rate, ends) in zip((chosen, self._every), timed, strict=True)
            )
            measured = self.searches.write(name, Measured(rows=tuple(both)))
        known: dict[Blocks, dict[str, Any]] = {
            row.blocks: {"texts_per_second": row.texts_per_second, "speedup_interval": row.speedup_interval}
            for row in measured.rows
        }
        return [replace(row, **known.get(row.blocks, {})) for row in rows]

    def _scored(self, row: LeanModel, blocks: Blocks, score: float | None = None) -> LeanModel:
        model = self._untrained(blocks)
        if score is None:
            score = self.evaluator.score(model)[0]
        ends = None if self.by_agreement else self.evaluator.interval_of(model.encode_ids(self.evaluator.texts()))
        return replace(row, blocks=blocks, score=score, untrained=score, interval=ends)

    def _choose(self, candidates: list[LeanModel]) -> Blocks:
        """Return the lean model's blocks; update the trained `candidates` in place."""
        if self.needed is None:
            taken = within_limit(candidates, self.budget)
            settled = candidates[candidates.index(taken)] = self._settled(taken)
            return settled.blocks
        # A binary search, as scores rise with the blocks.
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
        """Replace the row's blocks by the leading subset that learns best; the others stop learning early.

        Of two blocks of all-MiniLM-L6-v2, 5 and 6 score best untrained, 1 and 6 after training.
        """
        leading = [blocks for blocks, _ in self._search.leading if len(blocks) == len(row.blocks)]
        untrained = {blocks: self.evaluator.score(self._untrained(blocks))[0] for blocks in leading}
        for stage in races(len(self.learned_from)):
            if len(leading) > 1:
                rows = [self._try_out(blocks, stage, untrained[blocks]) for blocks in leading]
                rows.sort(key=lambda one: -one.score)
                half = -(-len(rows) // 2)
                leading = [one.blocks for one in rows[:half]]
                for dropped in rows[half:]:
                    self.runs.remove_checkpoints(run_name(dropped.blocks))
        return self._scored(row, leading[0], untrained[leading[0]])

    def _after_learning(self, row: LeanModel, students: Sequence[LeanModel], chosen: Blocks) -> LeanModel:
        """Return the size's best stored student, or the chosen one."""
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
        """Return all measured graphs and `Measured.covered`.

        With `frontier`, first measure new students that have weights. Without, return stored measurements if they
        include `chosen`, else none.
        """
        prefix = f"graphs-{timed_on(self.encoder)}-"
        measured = [one for name, one in self.runs.all(Measured).items() if name.startswith(prefix)]
        known = {row.blocks for one in measured for row in one.rows}
        if not self.settings.frontier and chosen not in known:
            return (), None
        students = [row.blocks for row in self._recorded("blocks") if row.blocks not in known]
        new = [blocks for blocks in students if self.runs.has_weights(run_name(blocks))]
        if self.settings.frontier and new:
            encoders = [(self._every, self.encoder)]
            for blocks in sorted(new, key=len, reverse=True):
                encoders.append((blocks, self.runs.encoder(run_name(blocks), self.encoder.device)))
            measured.append(self.runs.write(prefix + run_name(new[0]), self._measure_graphs(encoders)))
        return merged_graphs(measured), measured[-1].covered

    def _measure_graphs(self, encoders: Sequence[tuple[Blocks, Encoder]]) -> Measured:
        """Export each encoder in both precisions, and measure the graphs; the full model is first.

        Float layers of int8 graphs are chosen by the full model's cosines. Vectors with the training texts' pieces
        come from the graph with all words.
        """
        texts, evaluator, report = self.texts, self.evaluator, self.reporter
        held_out = np.concatenate([self.choosing, self.reporting])
        learned = {piece for place in self.learned_from.tolist() for piece in texts.ids(place)}
        all_words = int(self.encoder.backbone.config.vocab_size)
        # Ids of selection and report texts, by vocabulary size.
        ids: dict[int, tuple[Sequence[Ids], Sequence[Ids]]] = {all_words: (evaluator.texts(), report.texts())}
        with suppress(ModelError):  # no piece can be removed
            pieces = kept_pieces(self.encoder, learned)
            cut = keep_pieces(self.encoder, pieces)
            judge = None if self.labels is None else self.labels.judge(cut)
            choosing = texts.ids_for(cut, self.choosing.tolist()) if judge is None else judge.texts()
            own = choosing, texts.ids_for(cut, self.reporting.tolist())
            judged, reported = ([[pieces[piece] for piece in row] for row in side] for side in own)
            ids |= {len(pieces): (judged, reported)}
        from truncate_kit.methods.distill.labels import PAIRS, own_pairs

        pairs = own_pairs(self.encoder, texts.read(held_out[: 2 * PAIRS].tolist()))
        rows, calls, alone = list[tuple[LeanModel, Tensor]](), list[Callable[[], object]](), list[OnnxEncoder]()
        with tempfile.TemporaryDirectory() as scratch:
            for blocks, encoder in encoders:
                for precision in PRECISIONS:
                    folder = Path(scratch) / f"{len(calls)}"
                    export_onnx(encoder, folder, ExportSettings(precision=precision), search_pairs=pairs)
                    runner = OnnxEncoder.load(folder, precision=precision, threads=torch.get_num_threads())
                    alone.append(OnnxEncoder.load(folder, precision=precision, threads=1))  # others spin
                    size = sum(file.stat().st_size for file in graph_files(runner.file))
                    for words, sides in ids.items():
                        judging, reporting = map(runner.encode_ids, sides)
                        spared = (all_words - words) * bytes_of_rows(runner.file, all_words)
                        graph = LeanModel(
                            blocks=blocks, score=0.0, precision=precision, words=words, megabytes=(size - spared) / 1e6
                        )
                        for dims in (judging.shape[1] // share for share in SHARES):
                            score = evaluator.score_of(judging[:, :dims])[0]
                            ends = evaluator.interval_of(judging[:, :dims])
                            rows.append((replace(graph, dims=dims, score=score, interval=ends), reporting[:, :dims]))
                        calls.append(partial(runner.encode_ids, sides[0][:TIMED_TEXTS]))
                    self.progress("Measuring graphs", len(calls), len(encoders) * len(PRECISIONS) * len(ids))
            number, some = min(TIMED_TEXTS, len(evaluator.texts())), evaluator.texts()[:TIMED_TEXTS]
            timed = side_by_side(calls, number, reference=0)
            lone = [partial(runner.encode_ids, some) for runner in alone]
            work = side_by_side(lone, number, reference=0, clock=time.process_time)
        rates = (speed for speed in timed for _ in SHARES)
        paces = (float(f"{pace:.2g}") for pace, _ in work for _ in ids for _ in SHARES)
        marked = mark_dominated(
            replace(row, texts_per_second=rate, speedup_interval=ends, pace=pace)
            for (row, _), (rate, ends), pace in zip(rows, rates, paces, strict=True)
        )
        return Measured(
            rows=tuple(
                row if row.dominated else replace(row, agreement=report.agreement_of(vectors))  # takes a second
                for row, (_, vectors) in zip(marked, rows, strict=True)
            ),
            covered=100 * float(np.mean([learned.issuperset(row) for row in texts.ids_at(held_out)])),
        )

    def _untrained(self, blocks: Blocks) -> Encoder:
        """Return the untrained model of these blocks, sharing the full model's weights."""
        return keep(self.encoder, blocks, copy_weights=False)

    def _recorded(self, prefix: str) -> list[LeanModel]:
        """Return stored rows; prefix: `blocks` (trained on all texts) or `race` (compared)."""
        return [row for name, row in self.runs.all(LeanModel).items() if name.startswith(prefix)]

    def _try_out(self, blocks: Blocks, stage: int, untrained: float) -> LeanModel:
        """Return the student's row after `stage` evaluations; `learn` continues its checkpoint."""
        name = f"race{stage}-{run_name(blocks)}"
        if (known := self.runs.read(name, LeanModel)) is not None:
            return known
        if (learned := self.runs.read(run_name(blocks), LeanModel)) is not None:
            scores = learned.scores
        else:
            self.group.agree((blocks, stage))
            scores = tuple(self._taught(blocks, stage)[1].scores)
        scores = scores[:stage]  # a killed run may have more
        row = LeanModel(blocks=blocks, score=max(untrained, *scores), untrained=untrained, scores=scores)
        return self.runs.write(name, row)

    def learn(self, blocks: Blocks, *, weights: bool = False) -> LeanModel:
        """Return the student's row; train unless it (and, with `weights`, those) are stored."""
        name = run_name(blocks)
        known = self.runs.read(name, LeanModel)
        if known is not None and (self.runs.has_weights(name) or not weights):
            return known
        if len(blocks) == self.teacher.depth and self.by_agreement:
            whole = LeanModel(blocks=blocks, score=100.0, agreement=self.reporter.agreement(self.teacher))
            return self.runs.write_encoder(name, whole, keep(self.encoder, blocks))
        self.group.agree((blocks, None))
        student, run = self._taught(blocks)
        best = max(run.scores)
        if not self.by_agreement:  # training on a worse layer can lower the score
            untrained_student = keep(self.encoder, blocks)
            if (untrained := self.evaluator.score(untrained_student)[0]) > best + LOST:
                student, best = untrained_student, untrained
        agreement, steps = self.reporter.agreement(student), min(run.stage * run.interval, run.total)
        row = LeanModel(blocks=blocks, score=best, scores=tuple(run.scores), agreement=agreement)
        return self.runs.write_encoder(name, replace(row, steps=steps, seconds=run.seconds), student)

    def _taught(self, blocks: Blocks, stop_after: int | None = None) -> tuple[Encoder, StudentRun]:
        student, full = keep(self.encoder, blocks), (self.encoder, blocks)
        settings = replace(self.settings, learning_rate=self._rate(blocks))
        examples = TaughtTexts(self.texts, self.learned_from, settings, full, self.group)
        run = student_run(student, examples, self.evaluator, settings, self.group)
        task = f"{counted(len(blocks), 'block')} ({listed(blocks)}) {'learning' if stop_after is None else 'tried out'}"
        checkpoint = self.runs.checkpoint(run_name(blocks))
        run.train(checkpoint=checkpoint, stop_after=stop_after, progress=self.progress, task=task)
        return student, run

    def _rate(self, blocks: Blocks) -> float:
        depth = self.teacher.depth
        return self.settings.rate(self.encoder.width, left_out=(depth - len(blocks)) / depth)


def find_aim(
    encoder: Encoder,
    texts: Iterable[str],
    budget: Budget | None = None,
    *,
    max_length: int | None = None,
    progress: ProgressOption = False,
) -> "tuple[int | None, DropPrediction | None]":
    """Return the target layer for `DistillSettings`, and the predicted drop.

    The target layer is the last before the drop, or a higher one for the budget's blocks. Only the first
    `AIMING_TEXTS` texts are read.
    """
    budget = budget or Budget()
    check_budget(budget, encoder)  # the prediction takes a minute
    drop = None
    with suppress(TruncateKitError):
        from truncate_kit.analysis.profile import predicted_drop

        some = list(islice(texts, AIMING_TEXTS))
        drop = predicted_drop(encoder, some, max_length=max_length, progress=progress)
    if drop is None or drop.from_layer is None:
        return None, None
    layer = max(drop.from_layer - 1, LOWEST_TAUGHT, *(budget.named_blocks or [budget.number]))
    return (layer if layer < encoder.depth else None), drop


def announce_total(
    encoder: Encoder, texts: TextStore, budget: Budget, settings: DistillSettings, progress: Progress
) -> None:
    """Announce the expected sizes for `within`, and how long the run takes."""
    if hasattr(progress, "say"):
        if budget.within is not None:
            announce_sizes(encoder, len(texts), budget.within, progress)
        some = texts.ids_at(np.linspace(0, len(texts) - 1, TIMED_TEXTS).astype(np.int64))
        with precision(encoder.device, settings.precision):
            block = seconds_per_block(encoder, some)
        parts = expected_seconds(budget, settings, encoder.depth, len(texts), block)
        each = ", ".join(f"{name} {lasting(seconds)}" for name, seconds in parts.items())
        announce(progress, f"In all about {lasting(sum(parts.values()))}, less what is stored: {each}.")


@isolated()
def distill(
    encoder: Encoder,
    texts: Iterable[str] | RawTexts,
    *,
    out: Path,
    budget: Budget | None = None,
    settings: DistillSettings | None = None,
    data: "PairSplits | RetrievalSet | None" = None,
    before: str = "",
    engine: Engine | None = None,
    group: Group = ALONE,
    progress: ProgressOption = False,
) -> DistillResult:
    """Choose blocks within a budget, train them to give the full model's vectors, and save the lean model.

    Repeat the call to resume a killed run; the resulting model is the same.

    Args:
        encoder: The full model, unchanged.
        texts: Raw training texts, similar in length to the texts to encode later; texts of `data` are always excluded.
        out: Folder for `lean/` and `full/` (sentence-transformers models), vectors and trials.
        budget: Wanted size; by default the fewest blocks within a point.
        settings: Training of students.
        data: Labels for selection, instead of agreement, and for the report: dev and test pairs with scores, or two
            halves of a retrieval set's queries.
        before: Earlier changes to `encoder`, in words.
        engine: Computes the full model's vectors; by default in this process.
        group: Processes that train together; all need access to `out`.
        progress: A `ProgressOption`.

    Raises:
        UsageError: The budget cannot be met, or `out` holds the model to start from.
        DataError: Too few texts, or pairs without dev and test, with classes or without a defined correlation.
        ModelError: Vectors combine several layers, or no standard checkpoint can store the blocks.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    out, budget, progress = local_path(out), budget or Budget(), reporter(progress)
    settings = settings or DistillSettings()
    teacher, labels = teacher_of(encoder, settings.layer), None
    raw = texts if isinstance(texts, RawTexts) else RawTexts(texts=texts)
    if data is not None:
        from truncate_kit.methods.distill.labels import labels_of

        labels = labels_of(data, settings.seed, encoder)
        raw = replace(raw, exclude={*raw.exclude, *labels.texts})
    # Report mistakes before computing vectors for hours.
    check_budget(budget, encoder, None if teacher is encoder else teacher.depth)
    smallest = teacher if raw.vocabulary is None else keep_words(teacher, raw.vocabulary)
    if budget.megabytes is not None:
        check_size(budget.megabytes, smallest)
    with ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean", "full"))
            held.enter_context(unfinished((out / FOLDER).parent, shared=True))
            store_texts(teacher, raw, out / FOLDER, limit=settings.max_texts, progress=progress)
            store = TextStore(out / FOLDER, settings.precision)
            announce_total(teacher, store, budget, settings, progress)
            add_vectors(teacher, store, engine=engine, progress=progress)
        group.agree(None)  # texts and vectors are stored
        shared: dict[str, Any] = {"labels": labels, "vocabulary": raw.vocabulary, "group": group, "progress": progress}
        work = Distillation(encoder, teacher, out, settings, budget, **shared)
        if group.leads:
            held.enter_context(work.runs.open())
            held.enter_context(work.searches.open())
            return group.agree(work.run(before))
        work.follow()
        return cast(DistillResult, group.agree(None))
