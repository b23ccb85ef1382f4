"""`profile`: what texts and models show of the layers before any training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from truncate_kit.analysis.drop import DropPrediction, predict_drop
from truncate_kit.analysis.layer_profile import LayerProfile, called
from truncate_kit.analysis.measuring import Measurement, Measurer
from truncate_kit.analysis.scoring import cosines_by_reading, layer_cosines, layer_spearman
from truncate_kit.analysis.settings import FEWEST_TEXTS, AnalysisSettings
from truncate_kit.data import SEARCH_METRICS, PlacedPairs, RetrievalSet, TextPair, distinct_texts
from truncate_kit.errors import UsageError, too_few_texts
from truncate_kit.evaluation.searching import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    QueryScores,
    Reader,
    search_layers,
    side_prompt,
)
from truncate_kit.models import Encoder, encoder_digest, keep, parameters_kept
from truncate_kit.models.digest import Digest
from truncate_kit.models.layer_pooling import LayerPooler
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.settings import listed_texts
from truncate_kit.wording import FEWEST_COMPARED, counted

IN_MEMORY_BYTES = 512 << 20  # states of both models that are held; comparing them takes about four times that
IN_MEMORY_TEXTS = 10_000  # beyond, comparing in memory takes longer than a second pass: it is quadratic in the texts


def profile(
    encoder: Encoder,
    texts: Sequence[str] | None = None,
    *,
    reference: Encoder | None = None,
    pairs: Iterable[TextPair] | None = None,
    retrieval: RetrievalSet | None = None,
    settings: AnalysisSettings | None = None,
    progress: ProgressOption = False,
) -> LayerProfile:
    """Measure every layer of `encoder`; predict whether scores drop at its end, but where the pairs have only labels.

    Args:
        encoder: The model to look at.
        texts: None takes the texts of the pairs, else of `retrieval`; repeats are left out: they break CKA's debiasing.
        reference: A model known to have no such drop, best a masked language model of the same depth; None compares the
            model with its own middle layer, which is less sure.
        pairs: Graded pairs, for Spearman of the untrained states. Where every score is 0 or 1, nothing is predicted:
            of the alarms on labels none came true.
        retrieval: Queries and documents, for nDCG@10, MRR@10 and recall@10 of the untrained states, all documents
            compared; by the one that it names the best layer is chosen.
        settings: None takes the defaults.
        progress: True draws bars and logs; else what is called with the task and how much of it is done.

    Raises:
        UsageError: There is nothing to read, a model is none that was loaded, or a setting is impossible.
        ModelError: States are no numbers, or the model has no such blocks.
        DataError: There are too few texts, or scores that are no numbers or such that no correlation is defined.
    """
    progress = reporter(progress)
    settings = settings or AnalysisSettings()
    if texts is None and pairs is None and retrieval is not None:
        texts = [text for text in (*retrieval.queries, *retrieval.documents) if text]
    full_depth, digest = encoder.depth, encoder_digest(encoder)
    texts = None if texts is None else listed_texts(texts)
    if settings.blocks is not None:
        encoder = keep(encoder, settings.blocks, copy_weights=False)
    drawn = _drawn(texts, None if pairs is None else list(pairs), settings)
    count = len(drawn.texts)
    _check(encoder, reference, settings, count)
    streamed = _is_streamed(settings, [encoder] if reference is None else [encoder, reference], count)
    blocks = settings.intervals if count >= (4 if streamed else 2) * settings.intervals else 0
    measurer = Measurer(encoder=encoder, reference=reference, settings=settings, blocks=blocks, progress=progress)
    if streamed:
        found, held = measurer.streamed(drawn.texts), []
    else:
        found, held = measurer.in_memory(drawn.texts), drawn.texts
    result = _result(measurer, drawn, found, streamed=not held)
    result = replace(result, full_depth=full_depth, encoder_digest=digest, texts_digest=drawn.digest)
    if retrieval is None:
        return result
    scores = _search(measurer, retrieval, held, found.states[0])
    ndcg, mrr, recall = (tuple(float(one.by(metric).mean()) for one in scores) for metric in SEARCH_METRICS)
    result = replace(result, ndcg=ndcg, mrr=mrr, recall=recall, search_metric=retrieval.metric)
    return replace(result, num_queries=len(retrieval.queries))


def _result(measurer: Measurer, drawn: "_Drawn", found: Measurement, *, streamed: bool) -> LayerProfile:
    encoder, reference, settings = measurer.encoder, measurer.reference, measurer.settings
    held = [] if streamed else drawn.texts
    spearman = None if drawn.pairs is None else _spearman(measurer, drawn.pairs, held, found.states[0])
    return LayerProfile(
        model=encoder.name,
        reference=None if reference is None else reference.name,
        depth=encoder.depth,
        reference_depth=None if reference is None else reference.depth,
        width=encoder.width,
        pooling=settings.pooling or encoder.pooling,
        raw=settings.raw,
        parameters=_parameters(encoder),
        cka=found.cka,
        cka_without_outliers=found.cka_without_outliers,
        outliers=settings.outliers,
        cka_matrix=found.matrix,
        cka_within=found.within,
        reference_within=found.reference_within,
        estimator=settings.estimator,
        kernel=settings.kernel,
        level=settings.level,
        blocks=measurer.blocks,
        block_influence=found.tokens.block_influence if found.tokens else (),
        angular_distance=found.tokens.angular_distance if found.tokens else (),
        num_tokens=found.tokens.num_tokens if found.tokens else 0,
        effective_rank=found.scores.effective_rank,
        anisotropy=found.scores.anisotropy,
        outlier_share=found.scores.outlier_share,
        spearman=spearman,
        num_pairs=len(drawn.pairs or ()),
        num_texts=len(drawn.texts),
        num_repeats=drawn.num_repeats,
        num_not_drawn=drawn.num_not_drawn,
        streamed=streamed,
        matrix_texts=found.states[0].shape[1],
        drop=None if drawn.labels else _prediction(encoder, reference, found, spearman, len(drawn.pairs or ())),
        kept_blocks=settings.blocks,
        labels=drawn.labels,
    )


def _parameters(encoder: Encoder) -> tuple[int | None, ...]:
    """Of the model cut at each layer; heads and what pools over layers stay with all of them only."""
    pooler = None if isinstance(encoder.pooler, LayerPooler) else encoder.pooler
    above = [encoder.tail, *([] if pooler is None else [pooler])]
    others = sum(parameter.numel() for module in above for parameter in module.parameters())
    cut = parameters_kept(encoder.backbone.config)[:-1]
    return (*(None if count is None else count + others for count in cut), encoder.num_parameters)


def _check(encoder: Encoder, reference: Encoder | None, settings: AnalysisSettings, count: int) -> None:
    if count < FEWEST_TEXTS:
        raise too_few_texts(count)
    narrowest = min(model.width for model in (encoder, reference or encoder))
    if not 0 <= settings.outliers < narrowest:
        raise UsageError(
            f"Cannot leave out {settings.outliers} of {narrowest} dimensions.", hint="Use 0 for none, or 1 to 5."
        )


def _is_streamed(settings: AnalysisSettings, models: Sequence[Encoder], count: int) -> bool:
    size = sum((model.depth + 1) * model.width for model in models) * count * 4
    fits = size <= IN_MEMORY_BYTES and count <= IN_MEMORY_TEXTS
    streamed = not fits if settings.streamed is None else settings.streamed
    if streamed and settings.kernel != "linear":
        raise UsageError(
            f"The {settings.kernel} kernel needs all states in memory, and those of {count:,} texts are too many.",
            hint="Use `max_texts=2000`, or the linear kernel.",
        )
    return streamed


class _Drawn(NamedTuple):
    """The pairs and the distinct texts to read, how many repeats and texts not drawn, and the digest of all texts."""

    pairs: list[TextPair] | None
    texts: list[str]
    num_repeats: int
    num_not_drawn: int
    digest: str

    @property
    def labels(self) -> bool:
        """Whether the pairs are marked as alike or not: no similarity in which a drop could be seen."""
        return self.pairs is not None and {pair.target for pair in self.pairs} == {0, 1}


def _drawn(texts: Sequence[str] | None, pairs: list[TextPair] | None, settings: AnalysisSettings) -> _Drawn:
    if texts is None and pairs is None:
        raise UsageError("There is nothing to read.", hint="Give `texts`, or graded `pairs`.")
    graded = None if pairs is None else _drawn_pairs(pairs, settings.max_texts, settings.seed)
    given = [text for pair in pairs or () for text in (pair.first, pair.second)] if texts is None else texts
    whole = list(dict.fromkeys(given))
    if texts is None and graded is not None:
        drawn = distinct_texts(graded)
    else:
        drawn = [whole[place] for place in sorted(_order(len(whole), settings.seed)[: settings.max_texts])]
    digest = Digest()
    digest.add(*sorted(whole))
    return _Drawn(graded, drawn, len(given) - len(whole), len(whole) - len(drawn), digest.hexdigest())


def _drawn_pairs(pairs: list[TextPair], max_texts: int | None, seed: int) -> list[TextPair]:
    """Pairs drawn at random until their texts are `max_texts`, in their former order; all of them if they are fewer."""
    if max_texts is None:
        return pairs
    seen: set[str] = set()
    kept = []
    for place in _order(len(pairs), seed):
        both = seen | {pairs[place].first, pairs[place].second}
        if len(both) > max_texts:
            break
        seen = both
        kept.append(place)
    return [pairs[place] for place in sorted(kept)]


def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _spearman(
    measurer: Measurer, pairs: Sequence[TextPair], held: Sequence[str], states: torch.Tensor
) -> tuple[float | None, ...]:
    """Spearman of each layer, from the states that are held where they are those of all pairs."""
    if set(distinct_texts(pairs)) <= set(held):
        return layer_spearman(layer_cosines(PlacedPairs.of(pairs, held), states), pairs)
    return layer_spearman(cosines_by_reading(pairs, measurer.read), pairs)


def _search(measurer: Measurer, data: RetrievalSet, held: Sequence[str], states: torch.Tensor) -> list[QueryScores]:
    """Of each layer, from the states that are held where texts are read as they are: without any prompts."""
    place = {text: index for index, text in enumerate(held)}

    def reader(names: Sequence[str]) -> Reader:
        prompt = side_prompt(measurer.encoder, names)

        def read(texts: Sequence[str]) -> torch.Tensor:
            found = states.new_empty(states.shape[0], len(texts), states.shape[2])
            known = [number for number, text in enumerate(texts) if prompt is None and text in place]
            others = sorted({*range(len(texts))} - {*known})
            found[:, known] = states[:, [place[texts[number]] for number in known]]
            if others:
                found[:, others] = measurer.read([(prompt or "") + texts[number] for number in others], prompt=False)
            return found

        return read

    return search_layers(data, reader(QUERY_PROMPTS), reader(DOCUMENT_PROMPTS))


def _prediction(
    encoder: Encoder,
    reference: Encoder | None,
    found: Measurement,
    spearman: Sequence[float | None] | None,
    num_pairs: int,
) -> DropPrediction | None:
    """The scores of few pairs are chance: the sweeps that a probability comes from had hundreds."""
    if encoder.depth < 2:
        return None
    assert found.tokens is not None
    few = num_pairs < FEWEST_COMPARED
    predicted = predict_drop(
        found.cka.values,
        reference=None if reference is None else called(reference.name),
        low=found.cka.low,
        high=found.cka.high,
        effective_rank=found.scores.effective_rank,
        anisotropy=found.scores.anisotropy,
        block_influence=found.tokens.block_influence,
        # States that are the same for all texts rank nothing: no correlation.
        untrained_spearman=None if spearman is None or few else [value or 0.0 for value in spearman],
    )
    if spearman is None or not few:
        return predicted
    ignored = f"; the scores of {counted(num_pairs, 'pair')} are too few to count here."
    return replace(predicted, sentence=predicted.sentence.removesuffix(".") + ignored)
