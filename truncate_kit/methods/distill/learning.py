"""Learning: the full model's vectors, the student's loss, and the runs of one distillation."""

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.encode import Chunk, Encoded, EncodingWork
from truncate_kit.errors import LayerOutOfRangeError, MissingExtraError, ModelError, UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import is_graph_of
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.agreement import AgreementEvaluator
from truncate_kit.methods.distill.result import Blocks, DistillResult, Student, SubsetScore, Tryout, taught_by
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, DistillSettings
from truncate_kit.methods.distill.texts import CutTexts, Taught, TextStore, few_texts
from truncate_kit.models import Batch, Encoder, encoder_digest, keep, truncate
from truncate_kit.parallel import Engine, Send, Sequential
from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.progress import Progress, silent
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.evaluators import (
    Evaluator,
    PairEvaluator,
    RetrievalEvaluator,
    VectorEvaluator,
    halves,
    metric_of,
)
from truncate_kit.training.examples import Ids
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.training.store import RunStore, StoredRows
from truncate_kit.vectors import VectorFormat
from truncate_kit.wording import counted

CHUNK = 4096
VECTORS_FILE = "vectors.bin"
HALF = VectorFormat(precision="float16")


class TokenWork(EncodingWork):
    """Encoding of texts that are token ids already."""

    def perform(self, chunk: Chunk, send: Send) -> Encoded:
        """Rows as they are stored, in the order of the texts; those that were cut are counted where they are read."""
        vectors = self._encoder.encode_ids(chunk.texts)
        return Encoded(self._form.store(vectors).tobytes(), 0)


def teacher_of(encoder: Encoder, layer: int | None) -> Encoder:
    """What gives the vectors that are learned: the full model, or the full model cut at a layer before its end.

    Raises `LayerOutOfRangeError`, and `UsageError` where `encoder` is no model that was loaded.
    """
    if layer is not None and layer > encoder.depth:
        raise LayerOutOfRangeError(layer, encoder.depth, lowest=LOWEST_TAUGHT)
    return encoder if layer is None or layer == encoder.depth else truncate(encoder, layer)


def fastest(encoder: Encoder, folder: Path) -> Encoder | OnnxEncoder:
    """The encoder's float32 graph on a CPU, made in `folder` where it is not there whole; torch on a GPU.

    The graph runs on as many threads as torch does. Where ONNX Runtime is not installed or the encoder cannot be
    exported, the encoder itself.
    """
    if encoder.device.type != "cpu" or importlib.util.find_spec("onnxruntime") is None:
        return encoder
    try:
        if not is_graph_of(folder / GRAPH_FILES["fp32"], encoder_digest(encoder)):
            shutil.rmtree(folder, ignore_errors=True)
            export_onnx(encoder, folder)
        return OnnxEncoder.load(folder, precision="fp32", threads=torch.get_num_threads())
    except (ModelError, MissingExtraError):
        return encoder


def teacher_vectors(
    encoder: Encoder, texts: TextStore, folder: Path, *, engine: Engine | None = None, progress: Progress = silent
) -> NDArray[np.float16]:
    """Vectors (n, out) of all texts in float16, memory-mapped; what a killed run left is taken up.

    Args:
        encoder: The teacher.
        texts: In token ids.
        folder: Gets the graph and the vectors.
        engine: Where chunks are encoded, None is here; the bytes do not depend on it where processors are alike.
        progress: Called after each chunk.

    Raises:
        UsageError: The disk is too small, or a vector does not fit into float16.
        FileProblemError: The folder cannot be written.
    """
    runner = fastest(encoder, folder / "full")
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    made_from = {"encoder": encoder_digest(encoder), "texts": texts.digest, "width": width}
    file = folder / VECTORS_FILE
    stored = StoredRows(file, made_from, num_rows=len(texts), row_bytes=2 * width, chunk=CHUNK)
    missing = set(stored.missing)
    done = len(texts) - sum(min(CHUNK, len(texts) - start) for start in missing)

    def chunks() -> Iterator[Chunk]:
        for start in sorted(missing):
            places = range(start, min(start + CHUNK, len(texts)))
            yield Chunk(start, [texts.ids(place) for place in places])  # type: ignore[misc]  # ids, for TokenWork

    for chunk, encoded in (engine or Sequential()).run(TokenWork(runner, HALF), chunks(), lambda message: None):
        if not np.isfinite(np.frombuffer(encoded.rows, dtype=np.float16)).all():
            hint = "Use a model that gives vectors of length 1."
            raise UsageError("The full model's vectors do not fit into float16.", hint=hint)
        stored.write(chunk.start, encoded.rows)
        done += len(chunk.texts)
        progress("Encoding with the full model", done, len(texts))
    return read_vectors(encoder, texts, folder)


def read_vectors(encoder: Encoder, texts: TextStore, folder: Path) -> NDArray[np.float16]:
    """What `teacher_vectors` has written to `folder`."""
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    return np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r", shape=(len(texts), width))


def rows_of(vectors: NDArray[np.float16], places: list[int]) -> torch.Tensor:
    """Some of the vectors in float32, (b, out)."""
    return torch.from_numpy(np.asarray(vectors[places], dtype=np.float32))


EVALUATIONS = 20
"""Evaluations of an epoch."""

PATIENCE = 10
"""Learning ends where this number of evaluations, half an epoch, have brought nothing: at the peak of the rate scores
dip for a while, also where they end higher."""


class TaughtTexts:
    """Texts with the full model's vectors, both read from the disk."""

    head: nn.Module | None = None

    def __init__(
        self,
        texts: TextStore | CutTexts,
        places: NDArray[np.int64],
        vectors: NDArray[np.float16],
        settings: DistillSettings,
        full: tuple[Encoder, Blocks] | None = None,
        group: Group = ALONE,
    ) -> None:
        """What a student learns from.

        Args:
            texts: All texts.
            places: Of those that are learned from.
            vectors: The full model's, of all texts, (n, out).
            settings: Weights of the parts of the loss.
            full: The full model and the blocks that the student keeps of it; for the states alone.
            group: Processes that learn together, each embedding its share of every batch.
        """
        self._texts, self._places, self._vectors, self._settings = texts, places, vectors, settings
        self._full, self._group = full if settings.states else None, group
        self._lengths = texts.lengths()[places].tolist()
        self.separable = not (settings.similarity or self._full)
        # Over all texts: a batch holds texts of like length, and one of queries alone would cancel their weight.
        share = float((places < texts.counts.num_queries).mean())
        self._mean_weight = share * settings.query_weight + 1 - share

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return self._lengths  # type: ignore[no-any-return]  # numpy's tolist

    def texts(self) -> None:
        """None: the word embeddings keep all their rows."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """1 − cosine to the full model's vector, and `similarity` times the difference of all cosines in the batch.

        Every process of the group has the vectors of all, and gradients of its own share.
        """
        places = [int(self._places[place]) for place in batch]
        own = self._group.share(places)
        if own:
            inputs = encoder.pad([self._texts.ids(place) for place in own])
            states = encoder.hidden_states(inputs) if self._full else (encoder.token_states(**inputs),)
            mine = encoder.from_states(states[-1], inputs["attention_mask"]).float()
        else:  # a batch with fewer texts than there are processes
            mine = torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
        found = self._group.gather(mine[None], len(places))[0]
        places = [place for rank in range(self._group.size) for place in places[rank :: self._group.size]]
        wanted = rows_of(self._vectors, places).to(found.device)
        found, wanted = (nn.functional.normalize(side, dim=1) for side in (found, wanted))
        distance = 1 - (found * wanted).sum(1)
        if self._settings.query_weight != 1 and self._texts.counts.num_queries:
            queries = torch.tensor(places, device=found.device) < self._texts.counts.num_queries
            weight = torch.where(queries, self._settings.query_weight, 1.0)
            loss = (weight * distance).mean() / self._mean_weight
        else:
            loss = distance.mean()
        if self._settings.similarity:
            loss = loss + self._settings.similarity * nn.functional.mse_loss(found @ found.T, wanted @ wanted.T)
        if self._full and own:
            tokens = sum(self._lengths[place] for place in batch)
            loss = loss + self._settings.states * self._distance_of_states(states, inputs, tokens)
        return loss

    def _distance_of_states(self, states: Sequence[Tensor], inputs: Batch, tokens: int) -> Tensor:
        """Mean 1 − cosine between tokens behind the kept blocks and behind the same blocks of the full model.

        tokens: Number of them in the whole batch, of all processes.
        """
        assert self._full is not None
        full, blocks = self._full
        with torch.no_grad():
            wanted = full.hidden_states(inputs)
        real = inputs["attention_mask"].bool()
        mine = torch.stack([state[real].float() for state in states[1:]])
        its = torch.stack([wanted[block][real].float() for block in blocks])
        return (1 - nn.functional.cosine_similarity(mine, its, dim=-1)).sum() / (tokens * len(blocks))


class StudentRun(TrainingRun):
    """Learning without dropout, which would blur vectors that are to be met exactly; ends where scores stop growing."""

    dropout = False
    bucket_batches = 96
    """Of 118,000 texts, in batches of 16, padding is 2.5 % of the tokens, and 9.5 % with a quarter of that number."""

    def train_stage(self, progress: Progress, task: str) -> float:
        """One stage of `TrainingRun`."""
        loss = super().train_stage(progress, task)
        self._end_if_settled()
        return loss

    def restore(self, path: Path) -> None:
        """As `TrainingRun`; a run that had ended does not go on."""
        super().restore(path)
        self._end_if_settled()

    def _end_if_settled(self) -> None:
        scores = self.state.scores
        if len(scores) > PATIENCE and max(scores[-PATIENCE:]) <= max(scores[:-PATIENCE]):
            self.stages = self.state.stage


def student_run(
    student: Encoder,
    examples: TaughtTexts,
    evaluator: Evaluator,
    settings: DistillSettings,
    group: Group = ALONE,
    *,
    evaluations: int = EVALUATIONS,
) -> StudentRun:
    """The run that teaches an encoder in place.

    Args:
        student: Is taught.
        examples: What it learns from.
        evaluator: Scores it, and chooses the weights that are kept.
        settings: How it learns.
        group: Processes that learn together.
        evaluations: Number of scores in an epoch.
    """
    if not settings.train_embeddings:
        for path in student.family.embeddings.split(","):
            student.backbone.get_submodule(path).requires_grad_(False)
    training = TrainingSettings(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.rate(student.width),
        warmup=settings.warmup,
        precision=settings.precision,
    )
    steps = -(-len(examples) // settings.batch_size)
    every = max(1, -(-steps // evaluations))
    return StudentRun(student, examples, evaluator, training, seed=settings.seed, evaluate_every=every, group=group)


def ids_of(texts: TextStore, places: NDArray[np.int64]) -> list[Ids]:
    """Token ids of some texts."""
    return [texts.ids(int(place)) for place in places]


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
        if found is None:
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
