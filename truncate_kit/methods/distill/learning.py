"""Store texts with the full model's vectors, measure agreement with these vectors, and train students on them."""

import hashlib
import importlib.util
import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.core.errors import (
    DataError,
    DeviceError,
    LayerOutOfRangeError,
    MissingExtraError,
    ModelError,
    UsageError,
    counted,
    too_few_texts,
)
from truncate_kit.core.files import replacing
from truncate_kit.core.hardware import GRAPH_RUNTIMES, GraphRuntime, Precision
from truncate_kit.core.progress import Engine, Progress, Send, announce, silent
from truncate_kit.core.vectors import TEXT_RESAMPLES, VectorFormat, draw_counts, interval, rank_correlations, tied
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings, is_graph_of
from truncate_kit.export.runtime import Chunk, EncodingWork, GraphEncoder, load_text_encoder
from truncate_kit.methods.distill.settings import (
    AMONG,
    EVALUATIONS,
    LOWEST_TAUGHT,
    NEAR,
    Agreement,
    Blocks,
    DistillSettings,
    held_out_number,
)
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Batch, Encoder, prompted_ids, side_prompt
from truncate_kit.models.store import StoredRows, add_parts, encoder_digest
from truncate_kit.models.truncation import truncate
from truncate_kit.training.loop import ALONE, Evaluator, Examples, Group, Ids, TrainingRun, precision
from truncate_kit.training.settings import TrainingSettings

FOLDER = Path("distillation") / "texts"  # in a workspace
FEWEST_TEXTS = 200
CHUNK = 4096  # texts encoded at a time
VECTORS_FILE = "vectors.bin"
HALF = VectorFormat(precision="float16")
TEXTS_FILE, TOKENS_FILE, ENDS_FILE, NOTE_FILE = "texts.jsonl", "tokens.bin", "ends.npy", "texts.json"
PATIENCE = 10  # evaluations without a gain: scores dip near the peak learning rate
_AT_ONCE = 4096  # texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTexts:
    """Texts for `distill`.

    Attributes:
        texts: Training texts, similar in length to the texts to encode later; read once, in order.
        queries: Training queries, encoded with the model's query prompt.
        exclude: Texts not to train on.
        vocabulary: Texts whose word pieces the lean model keeps; by default it keeps all pieces.
    """

    texts: Iterable[str]
    queries: Iterable[str] = ()
    exclude: Collection[str] = ()
    vocabulary: Sequence[str] | None = None


class TextStore:
    """Token ids and vectors of the texts that `store_texts` wrote; queries come first.

    precision: The full model's, when it computes the vectors.
    """

    def __init__(self, folder: Path, precision: Precision = "fp32") -> None:
        self.folder, self.precision = folder, precision
        self.file = folder / TEXTS_FILE  # one JSON object a line, without prompts
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
        self.counts: dict[str, int] = note["counts"]  # see `DistillResult.texts`
        self.digest: str = note["texts"]
        self.num_queries = self.counts["num_queries"]
        self._tokens: NDArray[np.int32] = np.memmap(folder / TOKENS_FILE, dtype=np.int32, mode="r")
        self._ends: NDArray[np.int64] = np.load(folder / ENDS_FILE, mmap_mode="r")
        self.vectors_folder = folder.parent / f"{self.digest[:16]}-{precision}"  # vectors, and the graph that made them

    def __len__(self) -> int:
        return len(self._ends)

    def ids(self, place: int) -> Ids:
        """Return one text's token ids."""
        start = int(self._ends[place - 1]) if place else 0
        row: Ids = self._tokens[start : int(self._ends[place])].tolist()
        return row

    def ids_at(self, places: NDArray[np.int64]) -> list[Ids]:
        """Return several texts' token ids."""
        return [self.ids(place) for place in places.tolist()]

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each text, (n,)."""
        return np.diff(self._ends, prepend=0)

    @cached_property
    def vectors(self) -> NDArray[np.float16]:
        """Memory-map the vectors (n, out) of `add_vectors`."""
        return np.memmap(self.vectors_folder / VECTORS_FILE, dtype=np.float16, mode="r").reshape(len(self), -1)

    def vectors_at(self, places: Sequence[int]) -> Tensor:
        """Return float32 vectors (b, out)."""
        return torch.from_numpy(np.asarray(self.vectors[places], dtype=np.float32))

    def read(self, places: Collection[int]) -> list[str]:
        """Read the texts at `places` in the order of the file, without prompts."""
        wanted = set(places)
        with self.file.open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for place, line in enumerate(lines) if place in wanted]

    def ids_for(self, encoder: Encoder, places: Sequence[int]) -> list[Ids]:
        """Tokenise texts for another encoder with the same prompts."""
        text = dict(zip(sorted(places), self.read(places), strict=True))
        ids: dict[int, Ids] = {}
        for names, asked in ((QUERY_PROMPTS, True), (DOCUMENT_PROMPTS, False)):
            side = [place for place in text if (place < self.num_queries) == asked]
            prompt = side_prompt(encoder, names) or None
            ids |= zip(side, prompted_ids(encoder, [text[place] for place in side], prompt), strict=True)
        return [ids[place] for place in places]


def store_texts(
    encoder: Encoder, raw: RawTexts, folder: Path, *, limit: int | None = None, progress: Progress = silent
) -> TextStore:
    """Tokenise the distinct texts and write them to `folder`, which is replaced.

    Queries come first, with the model's query prompt; other texts get the document prompt, or the default.
    `limit` does not count queries.

    Raises `DataError` for queries alone or fewer than `FEWEST_TEXTS` distinct texts.
    """
    exclude, number = {_compared(text) for text in raw.exclude}, Counter[str]()
    lengths, digest, longest, seen = list[int](), hashlib.sha256(), encoder.max_length, set[bytes]()
    add_parts(digest, encoder_digest(encoder))

    def distinct(texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            mark = hashlib.blake2b(text.encode(), digest_size=12).digest()
            kind = "excluded" if _compared(text) in exclude else "repeated" if mark in seen else "kept"
            number[kind] += 1
            if kind == "kept":
                seen.add(mark)
                yield text

    sides = ((QUERY_PROMPTS, distinct(raw.queries)), (DOCUMENT_PROMPTS, islice(distinct(raw.texts), limit)))
    with replacing(folder) as place:
        place.mkdir()
        with (place / TEXTS_FILE).open("w", encoding="utf-8") as lines, (place / TOKENS_FILE).open("wb") as tokens:
            for names, source in sides:
                prompt = side_prompt(encoder, names) or None  # or the default
                while some := list(islice(source, _AT_ONCE)):
                    rows = prompted_ids(encoder, some, prompt)
                    full = [(prompt or "") + text for text, ids in zip(some, rows, strict=True) if len(ids) >= longest]
                    number["cut"] += encoder.reader.num_longer(full, prompt=prompt is None)  # some fit exactly
                    number["queries"] += len(some) * (names is QUERY_PROMPTS)
                    for text, ids in zip(some, rows, strict=True):
                        lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                        np.asarray(ids, dtype=np.int32).tofile(tokens)
                        lengths.append(len(ids))
                        add_parts(digest, names[0], text)
                    progress("Reading texts", len(lengths), len(lengths) + 1)
        count = len(lengths)
        if count < FEWEST_TEXTS or count == number["queries"]:
            raise DataError(
                f"Only {counted(count - number['queries'], 'distinct text')} and "
                f"{counted(number['queries'], 'query', 'queries')} to learn from, without "
                f"{counted(number['excluded'], 'text')} of `exclude` or the evaluation data.",
                hint=f"At least {FEWEST_TEXTS} are needed, tens of thousands are better: give other `texts`, a larger "
                "`max_texts`, or fewer to `exclude`.",
            )
        progress("Reading texts", len(lengths), len(lengths))
        np.save(place / ENDS_FILE, np.cumsum(lengths, dtype=np.int64))
        counts = {"num_texts": len(lengths), "num_queries": number["queries"], "compared": len(exclude)}
        counts |= {name: number[name] for name in ("repeated", "excluded", "cut")} | {"tokens": sum(lengths)}
        counts |= {name: int(np.quantile(lengths, share)) for name, share in (("middle", 0.5), ("long", 0.95))}
        note = {"texts": digest.hexdigest(), "counts": counts}
        (place / NOTE_FILE).write_text(json.dumps(note), encoding="utf-8")
    return TextStore(folder)


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation, to compare texts."""
    return re.findall(r"\w+", text.lower()) or text.split()


def _compared(text: str) -> str:
    return " ".join(words_of(text))


class TokenWork(EncodingWork):
    """Encode tokenised texts, in bf16 if asked."""

    def __init__(self, encoder: Encoder | GraphEncoder, form: VectorFormat, precision: str) -> None:
        super().__init__(encoder, form)
        self._precision = precision

    def perform(self, chunk: Chunk, send: Send) -> tuple[bytes, int]:
        """Return the stored rows in text order, and 0 cut texts: tokenised texts are already cut."""
        with precision(self._encoder.device, self._precision):
            return self._form.store(self._encoder.encode_ids(chunk[1])).tobytes(), 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_precision": self._precision}


def fastest(
    encoder: Encoder, folder: Path, precision: Precision = "fp32", progress: Progress = silent
) -> Encoder | GraphEncoder:
    """Return a graph in `folder`, made if needed (OpenVINO's in bf16); on a GPU or if this fails, the encoder."""
    runtime: GraphRuntime = "onnx" if precision == "fp32" else "openvino"
    package = "onnxruntime" if precision == "fp32" else "openvino"
    if encoder.device.type != "cpu" or importlib.util.find_spec(package) is None:
        return encoder
    try:
        if not is_graph_of(folder / GRAPH_RUNTIMES[runtime].files[precision], encoder_digest(encoder), precision):
            shutil.rmtree(folder, ignore_errors=True)
            announce(progress, "A graph of the full model is exported, to encode the texts faster.")
            export_onnx(encoder, folder, ExportSettings(runtime=runtime, precision=precision))
        return load_text_encoder(folder, runtime=runtime, precision=precision, threads=torch.get_num_threads())
    except (DeviceError, ModelError, MissingExtraError):
        return encoder


def add_vectors(
    encoder: Encoder, texts: TextStore, *, engine: Engine | None = None, progress: Progress = silent
) -> None:
    """Compute the vectors of all texts in the store's precision, for float16; resumes after a kill.

    Raises `UsageError` if the disk is too small, or a vector does not fit into float16.
    """
    runner = fastest(encoder, texts.vectors_folder / "full", texts.precision, progress)
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    made_from = {"encoder": encoder_digest(encoder), "texts": texts.digest, "width": width}
    file = texts.vectors_folder / VECTORS_FILE
    stored = StoredRows(file, made_from, num_rows=len(texts), row_bytes=2 * width, chunk=CHUNK)
    chunks = [range(start, min(start + CHUNK, len(texts))) for start in sorted(stored.missing)]
    done = len(texts) - sum(map(len, chunks))
    work = ((places.start, list(map(texts.ids, places))) for places in chunks)
    task = TokenWork(runner, HALF, texts.precision)
    for (start, ids), (rows, _) in (engine or Engine()).run(task, work, lambda message: None):
        if not np.isfinite(np.frombuffer(rows, dtype=np.float16)).all():
            hint = "Use a model that gives vectors of length 1."
            raise UsageError("The full model's vectors do not fit into float16.", hint=hint)
        stored.write(start, rows)
        done += len(ids)
        progress("Encoding with the full model", done, len(texts))


def held_out_places(
    number: int, settings: DistillSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split text indices at random into selection, report and training texts."""
    order = np.random.default_rng(settings.seed).permutation(number)
    held = held_out_number(number, settings)
    return order[: held // 2], order[held // 2 : held], order[held:]


def teacher_of(encoder: Encoder, layer: int | None) -> Encoder:
    """Return the full model, cut at the target layer if given. Raises `LayerOutOfRangeError`."""
    if layer is not None and layer > encoder.depth:
        raise LayerOutOfRangeError(layer, encoder.depth, lowest=LOWEST_TAUGHT)
    return encoder if layer is None or layer == encoder.depth else truncate(encoder, layer)


class AgreementEvaluator(Evaluator):
    """Score an encoder by its agreement with vectors (n, d) of held-out texts in random order.

    Raises `DataError` for fewer than `AMONG` texts.
    """

    def __init__(self, ids: list[Ids], vectors: Tensor) -> None:
        if len(ids) < AMONG:
            raise too_few_texts(len(ids), needed=AMONG)
        self._ids = ids
        unit = nn.functional.normalize(vectors.float(), dim=1)
        self._near = _nearest(unit)
        generator = torch.Generator().manual_seed(0)
        steps = torch.randint(1, len(ids), (len(ids), NEAR), generator=generator)  # never a text with itself
        others = (torch.arange(len(ids))[:, None] + steps) % len(ids)
        self._partners = torch.cat([self._near, others], dim=1)
        self._expected = self._cosines(unit).flatten().tolist()

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Return the correlation of `Agreement` (0 if all vectors are equal), without Pearson."""
        with torch.autocast("cpu", enabled=False):  # also inside bf16 training
            cosines = self._cosines(nn.functional.normalize(vectors.float(), dim=1))
        return self._correlation(cosines.flatten().tolist()), None

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "AgreementEvaluator":
        """Return an evaluator of the first texts, shortened and encoded by `encoder`."""
        ids = [encoder.reader.shortened(row, tokens) for row in self._ids[: max(number, AMONG)]]
        return AgreementEvaluator(ids, encoder.encode_ids(ids))

    def agreement(self, encoder: Encoder) -> Agreement:
        """Return `encoder`'s agreement, with intervals."""
        return self.agreement_of(encoder.encode_ids(self._ids))

    def agreement_of(self, vectors: Tensor) -> Agreement:
        """Return the agreement of vectors (n, d) of `texts()`."""
        unit = nn.functional.normalize(vectors.float(), dim=1)
        cosines = self._cosines(unit).flatten().tolist()
        # Resample texts, not pairs: one unusual text affects all of its pairs.
        drawn = draw_counts(len(unit), TEXT_RESAMPLES)
        counts = drawn[:, :, None] * drawn[:, self._partners.numpy()]
        scores = 100 * rank_correlations(tied(cosines), self._expected, counts.reshape(TEXT_RESAMPLES, -1))
        scores = scores[np.isfinite(scores)]
        low, high = interval(scores) if len(scores) else (0.0, 0.0)
        same = (_nearest(unit)[:, None, :] == self._near[:, :, None]).any(2)
        near = counts[:, :, :NEAR]
        overlap_low, overlap_high = interval(100 * (near * same.numpy()).sum((1, 2)) / near.sum((1, 2)))
        return Agreement(
            correlation=self._correlation(cosines),
            low=low,
            high=high,
            overlap=100 * float(same.float().mean()),
            num_texts=len(unit),
            overlap_low=overlap_low,
            overlap_high=overlap_high,
        )

    def _correlation(self, cosines: list[float]) -> float:
        """Return Spearman × 100; 0 for equal or non-finite cosines."""
        if not np.isfinite(cosines).all():
            return 0.0
        return 100 * float(np.nan_to_num(rank_correlations(tied(cosines), self._expected))[0])

    def _cosines(self, unit: Tensor) -> Tensor:
        """Return each text's cosines with its partners, (n, 2 · NEAR)."""
        return torch.einsum("nd,npd->np", unit, unit[self._partners])


def _nearest(unit: Tensor) -> Tensor:
    """Return the indices (n, NEAR) of the texts nearest to each text among the next AMONG − 1, from unit vectors."""
    places = torch.arange(len(unit))
    others = (places[:, None] + torch.arange(1, AMONG)) % len(unit)  # after the last text come the first ones
    cosines = [torch.einsum("nd,nod->no", unit[some], unit[others[some]]) for some in places.split(256)]
    return others.gather(1, torch.cat(cosines).topk(NEAR, dim=1).indices)


class TaughtTexts(Examples):
    """Training texts with the full model's vectors, both read from disk.

    full: the full model and the kept blocks, for `states`.
    """

    def __init__(
        self,
        texts: TextStore,
        places: NDArray[np.int64],
        settings: DistillSettings,
        full: tuple[Encoder, Blocks] | None = None,
        group: Group = ALONE,
    ) -> None:
        self._texts, self._places, self._settings = texts, places, settings
        self._full, self._group = full if settings.states else None, group
        self._lengths: list[int] = texts.lengths()[places].tolist()
        self.separable = not (settings.similarity or self._full)
        # Over all texts: the mean over a batch of queries only would cancel their weight.
        share = float((places < texts.num_queries).mean())
        self._mean_weight = 1 + share * (settings.query_weight - 1)

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        """Count each text's tokens."""
        return self._lengths

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the mean 1 − cosine to the teacher's vectors, plus the weighted losses `similarity` and `states`.

        Each process computes gradients for its own share.
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
        wanted = nn.functional.normalize(self._texts.vectors_at(places).to(vectors.device), dim=1)
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
    """Return the mean 1 − cosine of lean and full token states after kept blocks; tokens: of all processes."""
    encoder, blocks = full
    with torch.no_grad():
        wanted = encoder.hidden_states(inputs)
    real = inputs["attention_mask"].bool()
    mine = torch.stack([state[real].float() for state in states[1:]])
    its = torch.stack([wanted[block][real].float() for block in blocks])
    return (1 - nn.functional.cosine_similarity(mine, its, dim=-1)).sum() / (tokens * len(blocks))


class StudentRun(TrainingRun):
    """Training without dropout, as targets are exact; stops when scores stop growing."""

    dropout = False
    bucket_batches = 96
    """Padding of 118,000 texts in batches of 16: 2.5 %; 9.5 % if this is 24."""

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
) -> StudentRun:
    """Return the run that trains `student` in place."""
    if not settings.train_embeddings:
        for path in student.family.embeddings.split(","):
            student.backbone.get_submodule(path).requires_grad_(False)
    same = {name: getattr(settings, name) for name in ("epochs", "batch_size", "warmup", "precision")}
    training = TrainingSettings(**same, learning_rate=settings.rate(student.width))
    steps = -(-len(examples) // settings.batch_size)
    every = max(1, -(-steps // EVALUATIONS))
    return StudentRun(student, examples, evaluator, training, seed=settings.seed, evaluate_every=every, group=group)
