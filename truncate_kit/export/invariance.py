"""How far a vector depends on the batch and the padding that its text is run with, as int8 graphs are known to."""

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.data import PairSet, PlacedPairs
from truncate_kit.evaluation.graded import correlate, pair_similarities
from truncate_kit.export.export_report import Invariance
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.tokenizer import padded

_MOST_PAIRS = 200
Vectors = NDArray[np.float64]


def measure_invariance(exported: OnnxEncoder, pairs: PairSet) -> Invariance:
    """Compare vectors of texts run alone with those run in batches, and padded to the longest; at most 200 pairs."""
    assert exported.reader is not None
    chosen = pairs.pairs[:: -(-len(pairs) // _MOST_PAIRS)]
    if len({pair.target for pair in chosen}) < 2:  # a set sorted or filled oddly: then all of it
        chosen = pairs.pairs
    places = PlacedPairs.of(chosen)
    ids = exported.reader.token_ids(places.texts)
    longest = max(len(row) for row in ids)
    alone = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id)) for row in ids]))
    wide = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id, longest)) for row in ids]))
    batched = _unit(exported.encode_ids(ids).numpy())
    targets = [pair.target for pair in chosen]
    scores = [
        correlate(pair_similarities(torch.from_numpy(vectors), places), targets).spearman
        for vectors in (alone, batched)
    ]
    return Invariance(
        data=pairs.name,
        num_texts=len(places.texts),
        num_pairs=len(chosen),
        batch_difference=float(np.abs(batched - alone).max()),
        batch_cosine=float((batched * alone).sum(axis=1).min()),
        padding_difference=float(np.abs(wide - alone).max()),
        padding_cosine=float((wide * alone).sum(axis=1).min()),
        spearman_alone=scores[0],
        spearman_batched=scores[1],
    )


def _unit(vectors: NDArray[np.float32]) -> Vectors:
    unit: Vectors = torch.nn.functional.normalize(torch.from_numpy(vectors).double(), dim=1).numpy()
    return unit
