"""One distillation over texts that are stored: what is held out, what has learned, what is chosen."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.distillation.agreement import AgreementEvaluator
from truncate_kit.distillation.budget import closest, marked, within_limit
from truncate_kit.distillation.card import distill_card
from truncate_kit.distillation.distill_result import (
    DISTILL_FILE,
    Candidate,
    DistillResult,
    Sizes,
    Student,
    Tryout,
    taught_by,
)
from truncate_kit.distillation.frontier import measure_frontier
from truncate_kit.distillation.held_out import held_out_scores
from truncate_kit.distillation.notes import note_of_lengths, note_of_measure, note_of_unlearned
from truncate_kit.distillation.settings import Budget, DistillSettings
from truncate_kit.distillation.speed import texts_per_second
from truncate_kit.distillation.step_results import Blocks, Frontier, SubsetScore, SubsetSearch
from truncate_kit.distillation.student import EVALUATIONS, StudentRun, TaughtTexts, ids_of, student_run
from truncate_kit.distillation.subsets import compare_blocks, search_subsets
from truncate_kit.distillation.teacher import rows_of
from truncate_kit.distillation.texts import TextStore
from truncate_kit.distillation.tryout_texts import Taught, few_texts
from truncate_kit.encoders import Encoder, keep, save_encoder
from truncate_kit.progress import Progress
from truncate_kit.runs.store import RunStore
from truncate_kit.training.distributed import Group
from truncate_kit.training.evaluators import PairEvaluator, SampledEvaluator
from truncate_kit.training.retrieval_evaluator import RetrievalEvaluator, halves, metric_of
from truncate_kit.wording import counted

AGREEMENT_PER_POINT = 3.0
"""Points of agreement that stand for a point of score: lean models of all-MiniLM-L6-v2 with agreements of 93.9 to 99.1
lost less than a third of what they disagreed by on STS Benchmark and in the mean of STS12, 14, 15 and SICK-R, a single
block nearly half of it, and searches of abstracts 0.2 to 1.9 times as much (benchmarks/lean)."""

FEWEST_HELD_OUT = 42
"""Texts: halves of 21, so that each has the nearest twenty of which the overlap is counted."""

LOST = 1.0
"""Points that learning must lose on labels for blocks to be saved as they came, which are in no one's space."""


class Distillation:
    """One distillation: what is held out, what has learned, what is chosen."""

    def __init__(
        self,
        encoder: Encoder,
        teacher: Encoder,
        texts: TextStore,
        vectors: NDArray[np.float16],
        settings: DistillSettings,
        data: PairSplits | RetrievalSet | None,
        runs: RunStore,
        group: Group,
        progress: Progress,
    ) -> None:
        """As in `distill`; texts and vectors are there, and the leading process holds `runs`."""
        self.encoder, self.teacher, self.settings = encoder, teacher, settings
        self.texts, self.vectors, self.data = texts, vectors, data
        self.runs, self.group, self.progress = runs, group, progress
        order = np.random.default_rng(settings.seed).permutation(len(texts))
        held = max(FEWEST_HELD_OUT, min(settings.held_out, len(texts) // 10))
        choose, report, self._learned_from = order[: held // 2], order[held // 2 : held], order[held:]
        self._held_out = order[:held]
        self._choose_ids = ids_of(texts, choose)
        self._report = AgreementEvaluator(ids_of(texts, report), rows_of(vectors, report.tolist()))
        self.evaluator: SampledEvaluator = AgreementEvaluator(self._choose_ids, rows_of(vectors, choose.tolist()))
        self.metric, self.full_score = f"agreement with {taught_by(settings)}", 100.0
        self._queries: RetrievalEvaluator | None = None
        if isinstance(data, RetrievalSet):
            self.evaluator, self._queries = halves(encoder, data)
            self.metric, self.full_score = metric_of(data), self.evaluator.score(teacher)[0]
        elif data is not None and data.dev is not None:
            self.evaluator = PairEvaluator(encoder, data.dev)
            self.metric, self.full_score = "Spearman × 100 on dev", self.evaluator.score(teacher)[0]
        self._by_agreement = isinstance(self.evaluator, AgreementEvaluator)

    def run(self, budget: Budget, out: Path, before: str) -> DistillResult:
        """Search, learn, choose, measure, save."""
        search, candidates = self._search(budget), self._sizes(budget)
        chosen, holds = self._choose(candidates, budget)
        self._learn(chosen, weights=True)
        self.group.agree(None)  # there is no more to help with
        students = tuple(self.runs.all(Student).values())
        learned = {student.blocks: student.best for student in students if student.scores}
        rows = marked([replace(row, learned=learned.get(row.blocks)) for row in candidates])
        lean = self.runs.encoder(_run_name(chosen), self.encoder.device)
        result = DistillResult(
            model=self.encoder.name,
            depth=self.encoder.depth,
            before=before,
            metric=self.metric,
            full_score=self.full_score,
            budget=budget,
            settings=self.settings,
            learning_rate=self._rate(chosen),
            texts=self.texts.counts,
            search=search,
            tryouts=tuple(self.runs.all(Tryout).values()),
            candidates=rows,
            students=students,
            chosen=chosen,
            holds=holds,
            needed=self._needed(budget) if budget.kind == "within" else None,
            scores=held_out_scores(self.encoder, lean, self.data, self._queries),
            notes=(
                *note_of_unlearned(self._learn(chosen)),
                *note_of_measure(self.encoder),
                *note_of_lengths(self.data, self.evaluator, self.texts.counts),
            ),
            frontier=self._frontier(students, chosen, budget),
            data_fingerprint=self.data.fingerprint() if isinstance(self.data, PairSplits) and self.data.dev else "",
        )
        save_encoder(self.encoder, out / "full")
        save_encoder(lean, out / "lean", model_card=distill_card(result).text(lean))
        result.write(out / "lean" / DISTILL_FILE)
        self.runs.forget_weights({_run_name(chosen)})
        return result

    def _search(self, budget: Budget) -> SubsetSearch:
        """All subsets; where the blocks are named, these alone with what simpler rules keep, for nothing is chosen."""
        named = budget.named_blocks
        name = "subsets" if named is None else f"sub{_run_name(named)}"
        if (found := self.runs.read(name, SubsetSearch)) is not None:
            return found
        if named is not None:
            return self.runs.write(name, compare_blocks(self.teacher, self.evaluator, named))
        return self.runs.write(name, search_subsets(self.teacher, self.evaluator, progress=self.progress))

    def _sizes(self, budget: Budget) -> list[Candidate]:
        """The best subset of each size, with the blocks that were named in the place of theirs; timed once."""
        search = self._search(budget)
        rows = {len(row.blocks): row for row in search.best}
        known = {row.blocks: row.score for row in rows.values() if search.num_texts is None}  # else of other texts
        named = budget.named_blocks
        name = "sizes" + ("" if named is None else "-" + "-".join(map(str, named)))
        found = self.runs.read(name, Sizes)
        if found is None:
            blocks = {size: row.blocks for size, row in rows.items()} | ({len(named): named} if named else {})
            blocks[self.encoder.depth] = tuple(range(1, self.encoder.depth + 1))
            kept = [keep(self.encoder, subset, copy_weights=False) for subset in blocks.values()]
            speeds = texts_per_second(self.encoder, list(blocks.values()), self._choose_ids, progress=self.progress)
            candidates = tuple(
                Candidate(
                    blocks=subset,
                    untrained=known[subset] if subset in known else self.evaluator.score(model)[0],
                    learned=None,
                    texts_per_second=speed,
                    parameters=model.num_parameters,
                )
                for (size, subset), model, speed in zip(blocks.items(), kept, speeds, strict=True)
            )
            found = self.runs.write(name, Sizes(candidates=candidates))
        return list(found.candidates)

    def _choose(self, candidates: list[Candidate], budget: Budget) -> tuple[Blocks, bool]:
        """The blocks of the lean model, and whether it keeps within the budget; settles `candidates` that learn."""
        if budget.kind != "within":
            taken = within_limit(candidates, budget)
            settled = candidates[candidates.index(taken)] = self._settled(taken, budget)
            return settled.blocks, True
        # Scores rise with the number of blocks, but for noise: halving finds the first that holds in few runs.
        low, high, best = 0, len(candidates) - 2, None
        while low <= high:
            middle = (low + high) // 2
            settled = candidates[middle] = self._settled(candidates[middle], budget)
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

    def _settled(self, row: Candidate, budget: Budget) -> Candidate:
        """The row with those of its leading subsets that learn best from few texts.

        What a subset gives without training does not tell how well it learns: of two blocks of all-MiniLM-L6-v2, 5 and
        6 agree best with the full model untrained, and 1 and 6 by 1.4 points after 2,000 texts (benchmarks/lean).
        """
        leading = [one for one in self._search(budget).leading if len(one.blocks) == len(row.blocks)]
        if len(budget.named_blocks or ()) == len(row.blocks) or len(leading) < 2 or self._few is None:
            return row
        if self._search(budget).num_texts is not None:  # what learns is scored on all texts
            leading = [
                replace(one, score=self.evaluator.score(keep(self.encoder, one.blocks, copy_weights=False))[0])
                for one in leading
            ]
        best = max((self._tryout(one) for one in leading), key=lambda one: one.best)
        return replace(row, blocks=best.blocks, untrained=best.untrained)

    def _tryout(self, one: SubsetScore) -> Tryout:
        """What one subset gives after learning from few texts, from the store or by learning now."""
        name = f"tryout-{_run_name(one.blocks)}"
        found = self.runs.read(name, Tryout)
        if found is None:
            self.group.agree((one.blocks, True))
            _, run = self._taught(one.blocks, few=True)
            learned = max(run.state.scores)
            found = self.runs.write(name, Tryout(blocks=one.blocks, untrained=one.score, learned=learned))
        return found

    def _learn(self, blocks: Blocks, *, weights: bool = False) -> Student:
        """The student that keeps these blocks, from the store or by learning now; weights: whether they are needed."""
        name = _run_name(blocks)
        found = self.runs.read(name, Student)
        if found is not None and (self.runs.has_weights(name) or not weights):
            return found
        if len(blocks) == self.teacher.depth and self._by_agreement:  # the teacher itself
            agreement = self._report.agreement(self.teacher)
            whole = Student(blocks=blocks, scores=(), best=100.0, agreement=agreement, steps=0, seconds=0.0)
            return self.runs.write_encoder(name, whole, keep(self.encoder, blocks))
        self.group.agree((blocks, False))
        student, run = self._taught(blocks, few=False)
        state = run.state
        record = Student(
            blocks=blocks,
            scores=tuple(state.scores),
            best=max(state.scores),
            agreement=self._report.agreement(student),
            steps=min(state.stage * run.interval, run.total),
            seconds=state.seconds,
        )
        if not self._by_agreement:  # where a model's end makes its vectors worse, learning them loses what a cut has
            as_it_came = keep(self.encoder, blocks)
            if (untrained := self.evaluator.score(as_it_came)[0]) > record.best + LOST:
                student = as_it_came
                record = replace(record, best=untrained, agreement=self._report.agreement(student))
        return self.runs.write_encoder(name, record, student)

    def _frontier(self, students: Sequence[Student], chosen: Blocks, budget: Budget) -> Frontier | None:
        """Of the full model and all students whose weights are still there; measured once for a budget, if asked for.

        Later runs have the weights of the chosen one alone, and take what was measured when there were more.
        """
        asked = [float(budget.points), None] if budget.kind == "within" else [getattr(budget, budget.kind)]
        if budget.points != 1:  # None is what the default was called
            asked = asked[:1]
        names = [f"frontier-{budget.kind}-{one}-{_run_name(chosen)}" for one in asked]
        found = next((kept for kept in (self.runs.read(name, Frontier) for name in names) if kept is not None), None)
        if found is not None or not self.settings.frontier:
            return found
        held = [one.blocks for one in students if self.runs.has_weights(_run_name(one.blocks))]
        learned = sorted(held, key=len, reverse=True)
        every = tuple(range(1, self.encoder.depth + 1))
        encoders = [(blocks, self.runs.encoder(_run_name(blocks), self.encoder.device)) for blocks in learned]
        models = [(every, self.encoder), *encoders]
        measured = measure_frontier(models, self.evaluator, self.texts, self._held_out, progress=self.progress)
        return self.runs.write(names[0], measured)

    def help(self) -> DistillResult | None:
        """Learn together with the leading process, as often as it does; None."""
        while (order := self.group.agree(None)) is not None:
            self._taught(order[0], few=order[1])
        return None

    def _taught(self, blocks: Blocks, *, few: bool) -> tuple[Encoder, StudentRun]:
        """A student with the weights that learned best, and the run that led there. few: from few short texts."""
        student, full = keep(self.encoder, blocks), (self.encoder, blocks)
        taught: Taught = self.texts, self._learned_from, self.vectors
        settings = replace(self.settings, learning_rate=self._rate(blocks))
        evaluations, checkpoint = EVALUATIONS, self.runs.checkpoints.of(_run_name(blocks))
        if few and self._few is not None:  # at the usual rate, for there are few steps
            settings = replace(self.settings, epochs=1)
            evaluations, checkpoint, taught = 1, None, self._few
        examples = TaughtTexts(*taught, settings, full, self.group)
        run = student_run(student, examples, self.evaluator, settings, self.group, evaluations=evaluations)
        task = f"{counted(len(blocks), 'block')} ({', '.join(map(str, blocks))}) {'tried out' if few else 'learning'}"
        run.train(checkpoint=checkpoint, progress=self.progress, task=task)
        return student, run

    @cached_property
    def _few(self) -> Taught | None:
        return few_texts(self.teacher, self.texts, self._learned_from, self.vectors)

    def _rate(self, blocks: Blocks) -> float:
        depth = self.teacher.depth
        return self.settings.rate(self.encoder.width, left_out=(depth - len(blocks)) / depth)


def _run_name(blocks: Blocks) -> str:
    return "blocks" + "-".join(map(str, blocks))
