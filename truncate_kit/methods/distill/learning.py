"""What learns in a distillation, and from what: the part that every process of a group has."""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.methods.distill.agreement import AgreementEvaluator
from truncate_kit.methods.distill.distill_result import DistillResult, Student, taught_by
from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.methods.distill.step_results import Blocks, SubsetScore, Tryout
from truncate_kit.methods.distill.student import EVALUATIONS, StudentRun, TaughtTexts, ids_of, student_run
from truncate_kit.methods.distill.teacher import rows_of
from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.methods.distill.tryout_texts import Taught, few_texts
from truncate_kit.models import Encoder, keep
from truncate_kit.progress import Progress
from truncate_kit.training.distributed import Group
from truncate_kit.training.evaluators import PairEvaluator, VectorEvaluator
from truncate_kit.training.examples import Ids
from truncate_kit.training.retrieval_evaluator import RetrievalEvaluator, halves, metric_of
from truncate_kit.training.store import RunStore
from truncate_kit.wording import counted

FEWEST_HELD_OUT = 42
"""Texts: halves of 21, so that each has the nearest twenty of which the overlap is counted."""

LOST = 1.0
"""Points that learning must lose on labels for blocks to be saved as they came, which are in no one's space."""


class Learning:
    """What is held out of a distillation, and what has learned or learns now."""

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
        choose, report, self._learned_from = held_out_places(len(texts), settings)
        self._held_out = np.concatenate([choose, report])
        self._chosen_by, self._reported = choose.tolist(), report.tolist()
        self._choose_ids = ids_of(texts, choose)
        self._report = AgreementEvaluator(ids_of(texts, report), rows_of(vectors, report.tolist()))
        self.evaluator: VectorEvaluator = AgreementEvaluator(self._choose_ids, rows_of(vectors, choose.tolist()))
        self.metric, self.full_score = f"agreement with {taught_by(settings)}", 100.0
        self._queries: RetrievalEvaluator | None = None
        if isinstance(data, RetrievalSet):
            self.evaluator, self._queries = halves(encoder, data)
            self.metric, self.full_score = metric_of(data), self.evaluator.score(teacher)[0]
        elif data is not None and data.dev is not None:
            self.evaluator = PairEvaluator(encoder, data.dev)
            self.metric, self.full_score = "Spearman × 100 on dev", self.evaluator.score(teacher)[0]
        self._by_agreement = isinstance(self.evaluator, AgreementEvaluator)

    def _reread(self, encoder: Encoder) -> list[Ids]:
        """Token ids of the texts of `evaluator` by the tokenizer of another encoder."""
        if isinstance(self.data, RetrievalSet):
            return halves(encoder, self.data)[0].texts()
        if self.data is not None and self.data.dev is not None:
            return PairEvaluator(encoder, self.data.dev).texts()
        return self.texts.ids_for(encoder, self._chosen_by)

    def _tryout(self, one: SubsetScore) -> Tryout:
        """What one subset gives after learning from few texts, from the store or by learning now."""
        name = f"tryout-{run_name(one.blocks)}"
        found = self.runs.read(name, Tryout)
        if found is None or (self._by_agreement and found.low is None):  # an earlier version did not ask for it
            self.group.agree((one.blocks, True))
            student, run = self._taught(one.blocks, few=True)
            found = Tryout(blocks=one.blocks, untrained=one.score, learned=max(run.state.scores))
            if isinstance(self.evaluator, AgreementEvaluator):
                counts = student if found.learned >= one.score else keep(self.encoder, one.blocks, copy_weights=False)
                agreement = self.evaluator.agreement(counts)
                found = replace(found, overlap=agreement.overlap, low=agreement.low)
            found = self.runs.write(name, found)
        return found

    def _learn(self, blocks: Blocks, *, weights: bool = False) -> Student:
        """The student that keeps these blocks, from the store or by learning now; weights: whether they are needed."""
        name = run_name(blocks)
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
        evaluations, checkpoint = EVALUATIONS, self.runs.checkpoints.of(run_name(blocks))
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


def held_out_places(
    number: int, settings: DistillSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of that number of texts the places of those that choose, of those that report, and of those learned from."""
    order = np.random.default_rng(settings.seed).permutation(number)
    held = max(FEWEST_HELD_OUT, min(settings.held_out, number // 10))
    return order[: held // 2], order[held // 2 : held], order[held:]


def run_name(blocks: Blocks) -> str:
    """The name of a subset in a store."""
    return "blocks" + "-".join(map(str, blocks))
