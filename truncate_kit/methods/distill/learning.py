"""Agreement with the full model, its vectors, the student's loss, and the runs of a distillation."""

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.core.errors import MissingExtraError, ModelError, UsageError, too_few_texts
from truncate_kit.core.parallel import Engine, Send
from truncate_kit.core.precisions import GRAPH_FILES
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.statistics import TEXT_RESAMPLES, draw_counts, interval, rank_correlations, tied
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.core.wording import counted, listed
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.retrieval import SEARCH_METRICS, RetrievalSet
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import evaluate, paired_difference, spearman
from truncate_kit.evaluation.searching import estimated
from truncate_kit.export.encode import Chunk, EncodingWork
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import is_graph_of
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.settings import NEAR, Agreement, Blocks, DistillSettings, HeldOutScores, LeanModel
from truncate_kit.methods.distill.texts import Taught, TextStore, TokenRows, few_texts, held_out_places
from truncate_kit.models.encoder import Batch, Encoder
from truncate_kit.models.store import RunStore, StoredRows, encoder_digest
from truncate_kit.models.truncation import keep
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.examples import Evaluator, Ids, PairEvaluator, VectorEvaluator
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.queries import RetrievalEvaluator, halves, metric_of
from truncate_kit.training.settings import TrainingSettings


class AgreementEvaluator(VectorEvaluator):
    """Score an encoder by its agreement with given vectors (n, d) of held-out texts, without labels.

    Raises `DataError` for fewer than 2 · `NEAR` + 1 texts.
    """

    def __init__(self, ids: list[Ids], vectors: Tensor) -> None:
        if len(ids) <= 2 * NEAR:
            raise too_few_texts(len(ids), needed=2 * NEAR + 1)
        self._ids = ids
        unit = nn.functional.normalize(vectors.float(), dim=1)
        self._near = _nearest(unit)
        generator = torch.Generator().manual_seed(0)
        steps = torch.randint(1, len(ids), (len(ids), NEAR), generator=generator)  # never a text with itself
        others = (torch.arange(len(ids))[:, None] + steps) % len(ids)
        self._partners = torch.cat([self._near, others], dim=1)
        self._expected = self._cosines(unit).flatten().tolist()

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Return the correlation of `Agreement`, 0 if all vectors are equal; no Pearson."""
        with torch.autocast("cpu", enabled=False):  # also while bf16 trains
            cosines = self._cosines(nn.functional.normalize(vectors.float(), dim=1))
        return spearman(cosines.flatten().tolist(), self._expected) or 0.0, None

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "AgreementEvaluator":
        """Take the first texts, which are in random order, and encode them anew."""
        ids = [encoder.reader.shortened(row, tokens) for row in self._ids[: max(number, 2 * NEAR + 1)]]
        return AgreementEvaluator(ids, encoder.encode_ids(ids))

    def agreement(self, encoder: Encoder) -> Agreement:
        """Return correlation and overlap with their intervals."""
        return self.agreement_of(encoder.encode_ids(self._ids))

    def agreement_of(self, vectors: Tensor) -> Agreement:
        """Return the agreement of vectors (n, d) of `texts()`."""
        unit = nn.functional.normalize(vectors.float(), dim=1)
        cosines = tied(self._cosines(unit).flatten().tolist())
        # Texts are drawn, not pairs: one odd text spoils all of its pairs.
        drawn = draw_counts(len(unit), TEXT_RESAMPLES)
        counts = drawn[:, :, None] * drawn[:, self._partners.numpy()]
        scores = 100 * rank_correlations(cosines, self._expected, counts.reshape(TEXT_RESAMPLES, -1))
        scores = scores[np.isfinite(scores)]
        low, high = interval(scores) if len(scores) else (0.0, 0.0)
        same = (_nearest(unit)[:, None, :] == self._near[:, :, None]).any(2)
        near = counts[:, :, :NEAR]
        overlap_low, overlap_high = interval(100 * (near * same.numpy()).sum((1, 2)) / near.sum((1, 2)))
        return Agreement(
            correlation=spearman(cosines, self._expected) or 0.0,
            low=low,
            high=high,
            overlap=100 * float(same.float().mean()),
            num_texts=len(unit),
            overlap_low=overlap_low,
            overlap_high=overlap_high,
        )

    def _cosines(self, unit: Tensor) -> Tensor:
        """Return the cosines of each text with its partners, (n, 2 · NEAR)."""
        return torch.einsum("nd,npd->np", unit, unit[self._partners])


def _nearest(unit: Tensor) -> Tensor:
    """Return places (n, NEAR) of the texts nearest to each, by unit vectors (n, d)."""
    nearest = []
    for start in range(0, len(unit), 1024):  # never all n² cosines at once
        cosines = unit[start : start + 1024] @ unit.T
        cosines[torch.arange(len(cosines)), torch.arange(start, start + len(cosines))] = -2.0
        nearest.append(cosines.topk(NEAR, dim=1).indices)
    return torch.cat(nearest)


def held_out_scores(
    full: Encoder, lean: Encoder, data: PairSplits | RetrievalSet | None, queries: RetrievalEvaluator | None
) -> HeldOutScores | None:
    """Compare both models on the test pairs, or on the half of the queries that reports, if any."""
    mixed, scores = None, (0.0, 0.0)
    if isinstance(data, RetrievalSet) and queries is not None:
        ids = queries.texts()
        same = lean.backbone.config.vocab_size == full.backbone.config.vocab_size
        ours, theirs = lean.encode_ids(ids if same else halves(lean, data)[1].texts()), full.encode_ids(ids)
        lean_scores, full_scores = queries.scores(ours, ours), queries.scores(theirs, theirs)
        scores, mixed = (lean_scores.mean(), full_scores.mean()), float(queries.scores(ours, theirs).mean())
        (_, (low, high)), number = estimated(lean_scores - full_scores), len(lean_scores)
        name, metric = data.name, SEARCH_METRICS[data.metric]
    elif isinstance(data, PairSplits) and data.test is not None:
        both = [evaluate(model, data.test.pairs).cosines for model in (lean, full)]
        numbers = numbers_of((pair.first, pair.second) for pair in data.test.pairs)
        scores, (low, high), _, number = paired_difference(both[0], both[1], data.test.scores(), numbers=numbers)
        name, metric = data.test.name, "Spearman × 100"
    else:
        return None
    return HeldOutScores(
        data=name,
        metric=metric,
        lean=float(scores[0]),
        full=float(scores[1]),
        mixed=mixed,
        difference=float(scores[0] - scores[1]),
        low=low,
        high=high,
        num_compared=number,
    )


CHUNK = 4096
VECTORS_FILE = "vectors.bin"
HALF = VectorFormat(precision="float16")
EVALUATIONS = 20  # per epoch
PATIENCE = 10  # evaluations without a gain: scores dip for a while at the peak of the rate
LOST = 1.0  # points on labels that learning must lose before blocks are saved as they came


class TokenWork(EncodingWork):
    """Encode texts that are token ids already."""

    def perform(self, chunk: Chunk, send: Send) -> tuple[bytes, int]:
        """Return rows as stored, in the order of the texts."""
        return self._form.store(self._encoder.encode_ids(chunk.texts)).tobytes(), 0


def fastest(encoder: Encoder, folder: Path) -> Encoder | OnnxEncoder:
    """Return the float32 graph in `folder`, made if needed; on a GPU or without export, the encoder itself."""
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
    """Compute the vectors (n, out) of all texts in float16, memory-mapped in `folder`; continue after a kill.

    Raises `UsageError` if the disk is too small, or a vector does not fit into float16.
    """
    runner = fastest(encoder, folder / "full")
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    made_from = {"encoder": encoder_digest(encoder), "texts": texts.digest, "width": width}
    stored = StoredRows(folder / VECTORS_FILE, made_from, num_rows=len(texts), row_bytes=2 * width, chunk=CHUNK)
    chunks = [range(start, min(start + CHUNK, len(texts))) for start in sorted(stored.missing)]
    done = len(texts) - sum(map(len, chunks))
    work = (Chunk(places.start, list(map(texts.ids, places))) for places in chunks)
    for chunk, (rows, _) in (engine or Engine()).run(TokenWork(runner, HALF), work, lambda message: None):
        if not np.isfinite(np.frombuffer(rows, dtype=np.float16)).all():
            hint = "Use a model that gives vectors of length 1."
            raise UsageError("The full model's vectors do not fit into float16.", hint=hint)
        stored.write(chunk.start, rows)
        done += len(chunk.texts)
        progress("Encoding with the full model", done, len(texts))
    return read_vectors(texts, folder)


def read_vectors(texts: TextStore, folder: Path) -> NDArray[np.float16]:
    """Map what `teacher_vectors` wrote."""
    return np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r").reshape(len(texts), -1)


def rows_of(vectors: NDArray[np.float16], places: list[int]) -> Tensor:
    """Return some vectors in float32, (b, out)."""
    return torch.from_numpy(np.asarray(vectors[places], dtype=np.float32))


class TaughtTexts:
    """Texts with the teacher's vectors (n, out), both read from the disk.

    full: the full model and the kept blocks, for `states`.
    """

    head: nn.Module | None = None

    def __init__(
        self,
        texts: TokenRows,
        places: NDArray[np.int64],
        vectors: NDArray[np.float16],
        settings: DistillSettings,
        full: tuple[Encoder, Blocks] | None = None,
        group: Group = ALONE,
    ) -> None:
        self._texts, self._places, self._vectors, self._settings = texts, places, vectors, settings
        self._full, self._group = full if settings.states else None, group
        self._lengths: list[int] = texts.lengths()[places].tolist()
        self.separable = not (settings.similarity or self._full)
        # Over all texts: a batch of queries alone would cancel their weight.
        share = float((places < texts.num_queries).mean())
        self._mean_weight = 1 + share * (settings.query_weight - 1)

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        """Return the tokens of each text."""
        return self._lengths

    def texts(self) -> None:
        """Keep all rows of the word embeddings."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return 1 − cosine to the teacher's vector, plus the weighted parts for `similarity` and `states`.

        Every process has the vectors of all, and gradients of its own share.
        """
        places = [int(self._places[place]) for place in batch]
        own = self._group.share(places)
        if own:
            inputs = encoder.pad([self._texts.ids(place) for place in own])
            states = encoder.hidden_states(inputs) if self._full else (encoder.token_states(**inputs),)
            mine = encoder.from_states(states[-1], inputs["attention_mask"]).float()
        else:  # fewer texts than processes
            mine = torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
        vectors = nn.functional.normalize(self._group.gather(mine[None], len(places))[0], dim=1)
        places = [place for rank in range(self._group.size) for place in places[rank :: self._group.size]]
        wanted = nn.functional.normalize(rows_of(self._vectors, places).to(vectors.device), dim=1)
        is_query = torch.tensor(places, device=vectors.device) < self._texts.num_queries
        weight = torch.where(is_query, self._settings.query_weight, 1.0)
        loss = (weight * (1 - (vectors * wanted).sum(1))).mean() / self._mean_weight
        if self._settings.similarity:
            loss = loss + self._settings.similarity * nn.functional.mse_loss(vectors @ vectors.T, wanted @ wanted.T)
        if self._full and own:
            tokens = sum(self._lengths[place] for place in batch)
            loss = loss + self._settings.states * _distance_of_states(states, inputs, self._full, tokens)
        return loss


def _distance_of_states(states: Sequence[Tensor], inputs: Batch, full: tuple[Encoder, Blocks], tokens: int) -> Tensor:
    """Return the mean 1 − cosine between token states behind the kept blocks; `tokens` of all processes."""
    encoder, blocks = full
    with torch.no_grad():
        wanted = encoder.hidden_states(inputs)
    real = inputs["attention_mask"].bool()
    mine = torch.stack([state[real].float() for state in states[1:]])
    its = torch.stack([wanted[block][real].float() for block in blocks])
    return (1 - nn.functional.cosine_similarity(mine, its, dim=-1)).sum() / (tokens * len(blocks))


class StudentRun(TrainingRun):
    """Learn without dropout, which would blur exact targets; stop when scores stop growing."""

    dropout = False
    bucket_batches = 96
    """Padding is 2.5 % of the tokens of 118,000 texts in batches of 16, 9.5 % with a quarter as many."""

    def train_stage(self, progress: Progress, task: str) -> float:
        """Train one stage."""
        loss = super().train_stage(progress, task)
        self._end_if_settled()
        return loss

    def restore(self, path: Path) -> None:
        """Restore a run; one that had ended does not go on."""
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
    """Return the run that teaches `student` in place, with `evaluations` scores per epoch."""
    if not settings.train_embeddings:
        for path in student.family.embeddings.split(","):
            student.backbone.get_submodule(path).requires_grad_(False)
    same = {name: getattr(settings, name) for name in ("epochs", "batch_size", "warmup", "precision")}
    training = TrainingSettings(**same, learning_rate=settings.rate(student.width))
    steps = -(-len(examples) // settings.batch_size)
    every = max(1, -(-steps // evaluations))
    return StudentRun(student, examples, evaluator, training, seed=settings.seed, evaluate_every=every, group=group)


class Learning:
    """State of one distillation in every process of a group: held-out texts, evaluators and runs.

    Agreement chooses without `data`. Only the leading process opens `runs`.
    """

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
        self.encoder, self.teacher, self.settings = encoder, teacher, settings
        self.texts, self.vectors, self.data = texts, vectors, data
        self.runs, self.group, self.progress = runs, group, progress
        self.choosing, self.reporting, self.learned_from = held_out_places(len(texts), settings)
        self.report, by_agreement = (
            AgreementEvaluator(texts.ids_at(places), rows_of(vectors, places.tolist()))
            for places in (self.reporting, self.choosing)
        )
        self.evaluator: VectorEvaluator = by_agreement
        self.metric, self.full_score = settings.agreement, 100.0
        self.queries: RetrievalEvaluator | None = None  # that report
        if isinstance(data, RetrievalSet):
            self.evaluator, self.queries = halves(encoder, data)
            self.metric = metric_of(data)
        elif data is not None and data.dev is not None:
            self.evaluator, self.metric = PairEvaluator(encoder, data.dev), "Spearman × 100 on dev"
        self.by_agreement = self.evaluator is by_agreement
        if not self.by_agreement:
            self.full_score = self.evaluator.score(teacher)[0]

    def reread(self, encoder: Encoder) -> list[Ids]:
        """Tokenise the texts of `evaluator` for another encoder."""
        if isinstance(self.data, RetrievalSet):
            return halves(encoder, self.data)[0].texts()
        if self.data is not None and self.data.dev is not None:
            return PairEvaluator(encoder, self.data.dev).texts()
        return self.texts.ids_for(encoder, self.choosing.tolist())

    def view(self, blocks: Blocks) -> Encoder:
        """Return the untrained model of these blocks, which shares memory with the full model."""
        return keep(self.encoder, blocks, copy_weights=False)

    def try_out(self, blocks: Blocks, untrained: float) -> LeanModel:
        """Return a subset's score after learning from few texts; learn unless the store has it."""
        name = f"tryout-{run_name(blocks)}"
        if (known := self.runs.read(name, LeanModel)) is not None:
            return known
        self.group.agree((blocks, True))
        student, run = self._taught(blocks, few=True)
        best, agreement = max(run.state.scores), None
        if isinstance(self.evaluator, AgreementEvaluator):
            agreement = self.evaluator.agreement(student if best >= untrained else self.view(blocks))
        row = LeanModel(blocks=blocks, score=max(untrained, best), untrained=untrained)
        return self.runs.write(name, replace(row, scores=(best,), agreement=agreement))

    def learn(self, blocks: Blocks, *, weights: bool = False) -> LeanModel:
        """Return the student; learn unless the store has it, and its weights if they are needed."""
        name = run_name(blocks)
        known = self.runs.read(name, LeanModel)
        if known is not None and (self.runs.has_weights(name) or not weights):
            return known
        if len(blocks) == self.teacher.depth and self.by_agreement:
            whole = LeanModel(blocks=blocks, score=100.0, agreement=self.report.agreement(self.teacher))
            return self.runs.write_encoder(name, whole, keep(self.encoder, blocks))
        self.group.agree((blocks, False))
        student, run = self._taught(blocks, few=False)
        state, best = run.state, max(run.state.scores)
        if not self.by_agreement:  # learning a worse end loses what a cut has
            as_it_came = keep(self.encoder, blocks)
            if (untrained := self.evaluator.score(as_it_came)[0]) > best + LOST:
                student, best = as_it_came, untrained
        agreement, steps = self.report.agreement(student), min(state.stage * run.interval, run.total)
        row = LeanModel(blocks=blocks, score=best, scores=tuple(state.scores), agreement=agreement)
        return self.runs.write_encoder(name, replace(row, steps=steps, seconds=state.seconds), student)

    def recorded(self, prefix: str) -> list[LeanModel]:
        """Return stored rows: `blocks` learned from all texts, `tryout` from few."""
        return [row for name, row in self.runs.all(LeanModel).items() if name.startswith(prefix)]

    def help(self) -> None:
        """Learn together with the leading process."""
        while (order := self.group.agree(None)) is not None:
            self._taught(order[0], few=order[1])

    def _taught(self, blocks: Blocks, *, few: bool) -> tuple[Encoder, StudentRun]:
        student, full = keep(self.encoder, blocks), (self.encoder, blocks)
        taught: Taught = self.texts, self.learned_from, self.vectors
        settings = replace(self.settings, learning_rate=self.rate(blocks))
        evaluations, checkpoint = EVALUATIONS, self.runs.checkpoints.of(run_name(blocks))
        if few and self.few is not None:
            settings = replace(self.settings, epochs=1)  # few steps need the usual rate
            evaluations, checkpoint, taught = 1, None, self.few
        examples = TaughtTexts(*taught, settings, full, self.group)
        run = student_run(student, examples, self.evaluator, settings, self.group, evaluations=evaluations)
        task = f"{counted(len(blocks), 'block')} ({listed(blocks)}) {'tried out' if few else 'learning'}"
        run.train(checkpoint=checkpoint, progress=self.progress, task=task)
        return student, run

    @cached_property
    def few(self) -> Taught | None:
        """Return the texts to try subsets on, if there are enough."""
        return few_texts(self.teacher, self.texts, self.learned_from, self.vectors)

    def rate(self, blocks: Blocks) -> float:
        """Return the peak rate for these blocks."""
        depth = self.teacher.depth
        return self.settings.rate(self.encoder.width, left_out=(depth - len(blocks)) / depth)


def run_name(blocks: Blocks) -> str:
    """Name a subset in a store."""
    return "blocks" + "-".join(map(str, blocks))
