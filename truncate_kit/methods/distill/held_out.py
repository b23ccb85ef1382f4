"""Scores of lean and full model on what nothing was chosen by."""

from truncate_kit.bench.evaluators import quality_difference
from truncate_kit.data import SEARCH_METRICS, PairSplits, RetrievalSet
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.evaluation.scores import estimated
from truncate_kit.methods.distill.step_results import HeldOutScores
from truncate_kit.models import Encoder
from truncate_kit.pair_keys import numbers_of
from truncate_kit.training.retrieval_evaluator import RetrievalEvaluator, halves


def held_out_scores(
    full: Encoder, lean: Encoder, data: PairSplits | RetrievalSet | None, queries: RetrievalEvaluator | None
) -> HeldOutScores | None:
    """Of the test pairs, or of the half of the queries that is reported; None where there are neither.

    Args:
        full: The full model.
        lean: The lean one, which may have fewer word pieces.
        data: What was given to choose and report by.
        queries: That half, where `data` is a retrieval set.
    """
    if isinstance(data, RetrievalSet) and queries is not None:
        same = lean.backbone.config.vocab_size == full.backbone.config.vocab_size
        ids = queries.texts()
        own = ids if same else halves(lean, data)[1].texts()
        ours, theirs = lean.encode_ids(own), full.encode_ids(ids)
        lean_scores, full_scores, mixed = (
            queries.scores(*sides) for sides in ((ours, ours), (theirs, theirs), (ours, theirs))
        )
        found = estimated(lean_scores - full_scores)
        return HeldOutScores(
            data=data.name,
            metric=SEARCH_METRICS[data.metric],
            lean=float(lean_scores.mean()),
            full=float(full_scores.mean()),
            mixed=float(mixed.mean()),
            difference=found.value,
            low=found.low,
            high=found.high,
            num_compared=len(lean_scores),
            queries_fingerprint=data.queries_fingerprint(),
        )
    if not isinstance(data, PairSplits) or data.test is None:
        return None
    cosines = [evaluate(model, data.test.pairs).cosines for model in (lean, full)]
    numbers = numbers_of((pair.first, pair.second) for pair in data.test.pairs)
    paired = quality_difference("torch", cosines[0], cosines[1], data.test.scores(), numbers=numbers)
    return HeldOutScores(
        data=data.test.name,
        metric="Spearman × 100",
        lean=paired.lean,
        full=paired.full,
        mixed=None,
        difference=paired.difference,
        low=paired.low,
        high=paired.high,
        num_compared=paired.num_pairs,
    )
