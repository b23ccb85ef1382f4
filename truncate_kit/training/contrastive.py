"""Contrastive objectives: a text's positive against everything else in a batch, of any size in little memory.

The equations are those of "Don't Judge a Language Model by Its Last Layer" (Oh et al., COLING 2022), after SimCSE.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.data import TextPair
from truncate_kit.evaluation.searching import MEASURES
from truncate_kit.models import Encoder, length_batches, original_order
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.examples import Ids, Pairs
from truncate_kit.training.kernels import FasterOnCPU, faster_on_cpu

TEMPERATURE = 0.05
ALIKE = 32
"""Texts that a CPU encodes at a time. A batch is drawn at random; padded to its longest text, 64 rows of SICK and STS
Benchmark are padding for two thirds, and a step takes twice as long (benchmarks/training).
"""


def contrastive_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None,
    temperature: float,
    own_weight: float = 0.0,
    others: Tensor | None = None,
    measure: str = "cosine",
) -> Tensor:
    """Mean over i of −log(exp(cos(a_i, p_i)/τ) / Σ_j (exp(cos(a_i, p_j)/τ) + exp(cos(a_i, n_j)/τ + w·[i = j]))).

    Without negatives their sum is left out: equation 6, and with positives that are the anchors under another dropout
    mask equation 7; with them equation 8.

    Args:
        anchors: a, (b, d).
        positives: p, (b, d).
        negatives: n, (b, d); None without.
        temperature: τ.
        own_weight: w, of an anchor's own negative; 0 is the equation as printed, the authors' code has 1.
        others: (b, b), True where p_j is a positive of a_i as well, though not its own, and so left out of the sum;
            None where there are none.
        measure: Of `MEASURES`, in the place of cos.

    Returns:
        0-d, at least 0.
    """
    against = positives if negatives is None else torch.cat([positives, negatives])
    logits = MEASURES[measure](anchors, against) / temperature
    if others is not None:
        logits[:, : len(anchors)] = logits[:, : len(anchors)].masked_fill(others, -torch.inf)
    if negatives is not None and own_weight:
        own = torch.eye(len(anchors), device=logits.device)
        logits = logits + own_weight * torch.cat([torch.zeros_like(own), own], dim=1)
    return nn.functional.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))


class ContrastiveTexts:
    """Rows of texts as token ids, for the contrastive objectives."""

    head: nn.Module | None = None
    separable = False  # each row is held against all others of its batch

    def __init__(
        self,
        columns: Sequence[list[Ids]],  # anchors, positives, maybe negatives; anchors twice differ by dropout alone
        *,
        temperature: float = TEMPERATURE,
        own_weight: float = 0.0,  # of an anchor's own negative, see `contrastive_loss`
        chunk: int | None = None,  # texts encoded at a time, so that memory does not grow with the batch; None: all
        group: Group = ALONE,  # processes that share every batch; the loss is that of the whole batch
    ) -> None:
        self._columns = [list(column) for column in columns]
        self._temperature, self._own_weight, self._chunk, self._group = temperature, own_weight, chunk, group

    def __len__(self) -> int:
        return len(self._columns[0])

    def lengths(self) -> list[int]:
        """Tokens of the longest text of each row."""
        return [max(map(len, row)) for row in zip(*self._columns, strict=True)]

    def texts(self) -> list[Ids]:
        """Column after column."""
        return [ids for column in self._columns for ids in column]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """`contrastive_loss` of the rows at the given places."""
        own = self._group.share(batch)
        ids = [column[place] for column in self._columns for place in own]
        if self._chunk is None or len(ids) <= self._chunk:
            return self._loss_of(encoded(encoder, ids), len(batch))
        chunks = [ids[start : start + self._chunk] for start in range(0, len(ids), self._chunk)]
        states, parts = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(_random_state(encoder.device))
                parts.append(encoded(encoder, chunk))
        vectors = torch.cat(parts).requires_grad_()
        with torch.enable_grad():
            loss = self._loss_of(vectors, len(batch))
        (wanted,) = torch.autograd.grad(loss, vectors)
        # The value has no graph: `backward()` on it encodes chunk after chunk once more, with the random numbers of the
        # first time, and adds to the gradients what one large batch would have (Gao et al. 2021, arXiv:2101.06983).
        value = loss.detach().requires_grad_()
        again = partial(_backward, encoder, chunks, states, wanted, _autocast(encoder.device), faster_on_cpu())
        value.register_hook(again)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return value

    def _loss_of(self, vectors: Tensor, total: int) -> Tensor:
        """The loss of the whole batch of `total` rows, from the vectors of this process, column after column."""
        own = len(vectors) // len(self._columns)
        columns = self._group.gather(vectors.view(len(self._columns), own, vectors.shape[-1]), total)
        negatives = columns[2] if len(columns) > 2 else None
        return contrastive_loss(columns[0], columns[1], negatives, self._temperature, self._own_weight)


class QueriesWithDocuments(Pairs):
    """Queries, each with a document that answers it, against the other documents of a batch, by equation 6.

    Those that answer the query as well are no negatives of it. Where the model compares vectors by more than their
    directions, so does the loss, and without a temperature: these measures have no bounds that it would widen.

    Args:
        queries: Token ids of the two texts of each of `pairs`.
        documents: Token ids of the two texts of each of `pairs`.
        pairs: The texts themselves.
        measure: Of `MEASURES`.
    """

    separable = False  # each query is held against all documents of its batch

    def __init__(self, queries: list[Ids], documents: list[Ids], pairs: Sequence[TextPair], measure: str) -> None:
        super().__init__(queries, documents, [pair.target for pair in pairs], None)
        answers: dict[str, set[str]] = {}
        for pair in pairs:
            answers.setdefault(pair.first, set()).add(pair.second)
        self._pairs, self._answers, self._measure = tuple(pairs), answers, measure

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """See `Pairs`; queries are far shorter than documents, so texts of like length are encoded together."""
        columns = (self._first, self._second)
        return self.loss_of(encoded(encoder, [column[place] for column in columns for place in batch]), batch)

    def objective(self, first: Tensor, second: Tensor, batch: Sequence[int]) -> Tensor:
        """See `Pairs`."""
        others = self._others(batch).to(first.device)
        temperature = TEMPERATURE if self._measure == "cosine" else 1.0
        return contrastive_loss(first, second, None, temperature, others=others, measure=self._measure)

    def _others(self, batch: Sequence[int]) -> Tensor:
        """(b, b): whether the document of another row answers the query of a row, too."""
        rows = [self._pairs[place] for place in batch]
        answers = [[other.second in self._answers[row.first] for other in rows] for row in rows]
        return torch.tensor(answers) & ~torch.eye(len(rows), dtype=torch.bool)


def encoded(encoder: Encoder, ids: Sequence[Ids]) -> Tensor:
    """Vectors (n, d) in float32; none, with a gradient of nothing, where a batch has no row for this process."""
    if not ids:
        return torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
    if encoder.device.type == "cpu" and len(ids) > ALIKE:
        return _encoded_alike(encoder, ids)
    vectors: Tensor = encoder(**encoder.pad(ids))
    return vectors.float()


def _encoded_alike(encoder: Encoder, ids: Sequence[Ids]) -> Tensor:
    """As `encoded`: a vector depends on no other text, so texts of like length go through the model together."""
    batches = length_batches([len(row) for row in ids], ALIKE)
    vectors = torch.cat([encoder(**encoder.pad([ids[place] for place in batch])) for batch in batches])
    return vectors.float()[original_order(batches)]


def _backward(
    encoder: Encoder,
    chunks: Sequence[Sequence[Ids]],
    states: Sequence["RandomState"],
    wanted: Tensor,
    autocast: dict[str, Any],
    faster: bool,
    scale: Tensor,
) -> None:
    """Encode each chunk again and send the loss's gradient (n, d) through it.

    autocast, faster: as the first time, so that dropout draws the same. scale: the gradient of the loss.
    """
    start = 0
    mode = FasterOnCPU() if faster else contextlib.nullcontext()
    for chunk, state in zip(chunks, states, strict=True):
        with mode, _as_before(state, encoder.device), torch.enable_grad(), torch.autocast(**autocast):
            vectors = encoded(encoder, chunk)
        vectors.backward(wanted[start : start + len(chunk)] * scale)  # type: ignore[no-untyped-call]  # untyped in torch
        start += len(chunk)


# Random numbers: the CPU's generator and, on CUDA, the device's
RandomState = tuple[Tensor, Tensor | None]


def _random_state(device: torch.device) -> RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextlib.contextmanager
def _as_before(state: RandomState, device: torch.device) -> Iterator[None]:
    """Draw the random numbers from `state` on inside the block; after it those that would have come next."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield


def _autocast(device: torch.device) -> dict[str, Any]:
    """The autocast that is on now, to be the same when the chunks are encoded again."""
    return {
        "device_type": device.type,
        "dtype": torch.get_autocast_dtype(device.type),
        "enabled": torch.is_autocast_enabled(device.type),
    }
