"""Agreement with the full model, the full model's vectors, and the student's loss and training run."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.core.errors import MissingExtraError, ModelError, UsageError, too_few_texts
from truncate_kit.core.hardware import GRAPH_FILES
from truncate_kit.core.parallel import Engine, Send
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.vectors import TEXT_RESAMPLES, VectorFormat, draw_counts, interval, rank_correlations, tied
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.retrieval import SEARCH_METRICS, RetrievalSet
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import evaluate, paired_difference, spearman
from truncate_kit.evaluation.retrieval import estimated
from truncate_kit.export.encode import Chunk, EncodingWork
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import is_graph_of
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.settings import NEAR, Agreement, Blocks, DistillSettings, HeldOutScores
from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.models.encoder import Batch, Encoder
from truncate_kit.models.store import StoredRows, encoder_digest
from truncate_kit.training.examples import Evaluator, Examples, Ids
from truncate_kit.training.loop import ALONE, Group, TrainingRun
from truncate_kit.training.queries import RetrievalEvaluator, halves
from truncate_kit.training.settings import TrainingSettings


class AgreementEvaluator(Evaluator):
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
        with torch.autocast("cpu", enabled=False):  # also inside bf16 training
            cosines = self._cosines(nn.functional.normalize(vectors.float(), dim=1))
        return spearman(cosines.flatten().tolist(), self._expected) or 0.0, None

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "AgreementEvaluator":
        """Return an evaluator of the first texts (in random order), shortened and encoded by `encoder`."""
        ids = [encoder.reader.shortened(row, tokens) for row in self._ids[: max(number, 2 * NEAR + 1)]]
        return AgreementEvaluator(ids, encoder.encode_ids(ids))

    def agreement(self, encoder: Encoder) -> Agreement:
        """Return correlation and overlap, with intervals."""
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
    """Compare both models on the test pairs or reporting queries, if any."""
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
PATIENCE = 10  # evaluations without a gain: scores dip near the peak learning rate
LOST = 1.0  # points: a larger loss in training saves the untrained blocks


class TokenWork(EncodingWork):
    """Encode tokenised texts."""

    def perform(self, chunk: Chunk, send: Send) -> tuple[bytes, int]:
        """Return the stored rows in text order, and 0."""
        return self._form.store(self._encoder.encode_ids(chunk[1])).tobytes(), 0


def fastest(encoder: Encoder, folder: Path) -> Encoder | OnnxEncoder:
    """Return the float32 graph in `folder`, exported if needed; on a GPU or if export fails, the encoder."""
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
    work = ((places.start, list(map(texts.ids, places))) for places in chunks)
    for (start, ids), (rows, _) in (engine or Engine()).run(TokenWork(runner, HALF), work, lambda message: None):
        if not np.isfinite(np.frombuffer(rows, dtype=np.float16)).all():
            hint = "Use a model that gives vectors of length 1."
            raise UsageError("The full model's vectors do not fit into float16.", hint=hint)
        stored.write(start, rows)
        done += len(ids)
        progress("Encoding with the full model", done, len(texts))
    return read_vectors(texts, folder)


def read_vectors(texts: TextStore, folder: Path) -> NDArray[np.float16]:
    """Memory-map the vectors that `teacher_vectors` wrote."""
    return np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r").reshape(len(texts), -1)


def rows_of(vectors: NDArray[np.float16], places: list[int]) -> Tensor:
    """Return some vectors in float32, (b, out)."""
    return torch.from_numpy(np.asarray(vectors[places], dtype=np.float32))


class TaughtTexts(Examples):
    """Training texts with the teacher's vectors (n, out), both read from disk.

    full: the full model and the kept blocks, for `states`.
    """

    def __init__(
        self,
        texts: TextStore,
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

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return 1 − cosine to the teacher's vector, plus the weighted parts for `similarity` and `states`.

        Each process sees all vectors, and computes gradients for its own share.
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
    """Return the mean 1 − cosine between token states after the kept blocks; `tokens`: number over all processes."""
    encoder, blocks = full
    with torch.no_grad():
        wanted = encoder.hidden_states(inputs)
    real = inputs["attention_mask"].bool()
    mine = torch.stack([state[real].float() for state in states[1:]])
    its = torch.stack([wanted[block][real].float() for block in blocks])
    return (1 - nn.functional.cosine_similarity(mine, its, dim=-1)).sum() / (tokens * len(blocks))


class StudentRun(TrainingRun):
    """Train without dropout, which would blur exact targets; stop when scores stop growing."""

    dropout = False
    bucket_batches = 96
    """With 96, padding is 2.5 % of the tokens of 118,000 texts in batches of 16; with 24, 9.5 %."""

    def is_settled(self) -> bool:
        """Return whether scores have stopped growing."""
        scores = self.scores
        return len(scores) > PATIENCE and max(scores[-PATIENCE:]) <= max(scores[:-PATIENCE])


def student_run(
    student: Encoder,
    examples: TaughtTexts,
    evaluator: Evaluator,
    settings: DistillSettings,
    group: Group = ALONE,
    *,
    evaluations: int = EVALUATIONS,
) -> StudentRun:
    """Return the run that trains `student` in place, with `evaluations` per epoch."""
    if not settings.train_embeddings:
        for path in student.family.embeddings.split(","):
            student.backbone.get_submodule(path).requires_grad_(False)
    same = {name: getattr(settings, name) for name in ("epochs", "batch_size", "warmup", "precision")}
    training = TrainingSettings(**same, learning_rate=settings.rate(student.width))
    steps = -(-len(examples) // settings.batch_size)
    every = max(1, -(-steps // evaluations))
    return StudentRun(student, examples, evaluator, training, seed=settings.seed, evaluate_every=every, group=group)
