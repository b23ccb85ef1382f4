"""The second output of a graph whose encoder scores pairs itself: how alike two texts are."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truncate_kit.errors import failed_check
from truncate_kit.export.export_report import Check
from truncate_kit.models import Encoder, evaluating
from truncate_kit.wording import counted

SCORE = "score"
PARITY_LIMIT = 1e-4


class WithScores(nn.Module):
    """An encoder with heads, as it goes into the graph: vectors (n, out), and scores of pairs of them, (n // 2,).

    Text i is scored with text i + n // 2: put the first texts of all pairs before the second ones.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors and scores."""
        heads = self.encoder.heads
        assert heads is not None
        vectors: Tensor = self.encoder(input_ids, attention_mask)
        half = vectors.shape[0] // 2
        # Scored all round and cut at the end: kernels choke on no pairs at all, which is what one text has.
        return vectors, heads.similarities(vectors, torch.cat([vectors[half:], vectors[:half]]))[:half]


def check_scores(
    session: Any, encoder: Encoder, file: Path, *, limit: float | None = PARITY_LIMIT
) -> tuple[Check, ...]:
    """Compare the scores of the graph with the encoder's on pairs of random texts; nothing for one without heads.

    Args:
        session: That of the graph.
        encoder: What was exported.
        file: The graph, for the error.
        limit: None only states the difference.

    Raises:
        ModelError: A difference is above it, or NaN.
    """
    if encoder.heads is None:
        return ()
    checks = []
    for pairs in (1, 8):
        feeds = _random_pairs(encoder, pairs)
        with torch.inference_mode(), evaluating(encoder):
            _, expected = WithScores(encoder)(**{name: value.to(encoder.device) for name, value in feeds.items()})
        found = session.run([SCORE], {name: value.numpy() for name, value in feeds.items()})[0]
        difference = float(np.abs(found - expected.cpu().numpy()).max())
        name = f"score of {counted(pairs, 'pair')}"
        if not np.isfinite(difference) or (limit is not None and difference > limit):
            raise failed_check(f"{file.name}, {name}: a difference of {difference:.2g}")
        checks.append(Check(name=name, difference=difference, limit=limit))
    return tuple(checks)


def _random_pairs(encoder: Encoder, pairs: int) -> dict[str, Tensor]:
    """Random ids of 2 × pairs texts; the last pair is one text twice."""
    generator = torch.Generator().manual_seed(pairs)
    config, length = encoder.backbone.config, min(12, encoder.max_length)
    padding = config.pad_token_id or 0
    ids = torch.randint(int(config.vocab_size), (2 * pairs, length), generator=generator)
    ids = torch.where(ids == padding, (padding + 1) % int(config.vocab_size), ids)
    ends = torch.randint(1, length + 1, (2 * pairs, 1), generator=generator)
    if pairs > 1:
        ids[-1], ends[-1] = ids[pairs - 1], ends[pairs - 1]
    mask = (torch.arange(length) < ends).long()
    return {"input_ids": torch.where(mask == 1, ids, padding), "attention_mask": mask}
