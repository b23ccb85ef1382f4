"""How far a vector hangs on the batch and the padding that its text is run with: what int8 graphs are known to do."""

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.data import PairSet
from truncate_kit.export.results import Invariance
from truncate_kit.export.runtime import OnnxEncoder, padded
from truncate_kit.training.evaluation import correlate

_MOST_PAIRS = 200
Vectors = NDArray[np.float64]


def measure_invariance(exported: OnnxEncoder, pairs: PairSet) -> Invariance:
    """Compare vectors of texts run alone with those run in batches, and padded to the longest; at most 200 pairs."""
    assert exported.reader is not None
    chosen = pairs.pairs[:: -(-len(pairs) // _MOST_PAIRS)]
    if len({pair.target for pair in chosen}) < 2:  # a set sorted or filled oddly: then all of it
        chosen = pairs.pairs
    texts = list(dict.fromkeys(text for pair in chosen for text in (pair.first, pair.second)))
    ids = exported.reader.token_ids(texts)
    longest = max(len(row) for row in ids)
    alone = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id)) for row in ids]))
    wide = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id, longest)) for row in ids]))
    batched = _unit(exported.encode_ids(ids).numpy())
    place = {text: index for index, text in enumerate(texts)}
    first, second = ([place[getattr(pair, side)] for pair in chosen] for side in ("first", "second"))
    targets = [pair.target for pair in chosen]
    scores = [
        correlate((vectors[first] * vectors[second]).sum(axis=1).tolist(), targets).spearman
        for vectors in (alone, batched)
    ]
    return Invariance(
        data=pairs.name,
        num_texts=len(texts),
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
