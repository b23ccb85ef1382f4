"""Suites of graded pairs: one set of pairs, and the STS sets as MTEB scores them."""

from collections.abc import Container, Sequence

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.progress import ProgressOption, reporter
from truncate_kit.core.vectors import StoredVectors, TextEncoder, VectorFormat
from truncate_kit.core.workspace import read_origin
from truncate_kit.data.pairs import PlacedPairs, TextPair, check_ranks, distinct_texts
from truncate_kit.data.seen import pair_key, seen_pairs
from truncate_kit.data.suites import StsSet, find_sts, read_trained_pairs
from truncate_kit.evaluation.graded import correlate, encode_distinct, evaluate, pair_similarities, spearman
from truncate_kit.evaluation.suite import Score, SuiteReport, SuiteRun, Values, report_of


def score_pairs(
    encoder: TextEncoder, pairs: Sequence[TextPair], *, model: str, data: str, form: VectorFormat
) -> SuiteReport:
    """Report `evaluate` with stored vectors."""
    stored = StoredVectors(encoder, form)
    correlation = evaluate(stored, pairs)
    values: Values = {"pairs": correlation.num_pairs, "Spearman": correlation.spearman, "Pearson": correlation.pearson}
    values |= {"dimensions": form.kept(stored.width), "bytes per vector": form.bytes_per_vector(stored.width)}
    row = Score(task=data, labels={"vectors": form.precision}, values=values)
    return report_of("pairs", encoder, model, "correlation with the scores × 100", [row])


def run_sts(run: SuiteRun) -> SuiteReport:
    """Score the sets of a folder, also without trained pairs (option `seen`)."""
    sets, name = find_sts(run.data), run.options["seen"]
    seen = seen_pairs(run.model) if name is None else read_trained_pairs(name)
    if seen is not None and name is None:
        name = f"pairs noted in {run.model}"
        run.note(f"{run.model} was trained on or chosen by {name}: scored with and without those pairs.")
    elif seen is None and read_origin(run.model) is not None:
        run.note(f"What {run.model} was trained on is not known here: name it with --seen.")
    return score_sts(run.encoder, sets, model=run.model, seen=seen, progress=run.progress, seen_name=name)


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[StsSet],
    *,
    model: str,
    seen: Container[int] | None = None,
    seen_name: str | None = None,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Score an encoder on the sets.

    Args:
        encoder: Anything with `.encode(texts)`.
        sets: As from `find_sts`.
        model: Name in the report.
        seen: Keys of trained pairs (`read_trained_pairs`), to score also without them.
        seen_name: Their source, for the report.
        progress: True for bars and logs, or a callable.

    Raises:
        UsageError: There are no sets.
        DataError: A correlation is undefined.
        ModelError: The encoder does not give one vector per text.
    """
    if not sets:
        raise UsageError("There are no sets to score.", hint="find_sts(path) gives those of a folder.")
    for data in sets:
        check_ranks([pair.target for pair in data.pairs], data.name)
    texts = distinct_texts(pair for data in sets for pair in data.pairs)
    vectors = encode_distinct(encoder, texts, reporter(progress))
    rows, notes = [], []
    for data in sets:
        cosines = pair_similarities(vectors, PlacedPairs.of(data.pairs, texts), encoder)
        rows.append(_score(data, cosines, seen))
        if len(data.pairs) != data.published_pairs:
            number = f"{len(data.pairs):,} of the published {data.published_pairs:,} pairs"
            notes.append(f"{data.name} here has {number}: not comparable.")
    if seen_name is not None:
        notes.append(f"Unseen pairs: without {seen_name}.")
    return report_of("sts", encoder, model, "semantic similarity × 100", rows, notes)


def _score(data: StsSet, cosines: Sequence[float], seen: Container[int] | None) -> Score:
    try:
        whole = correlate(cosines, [pair.target for pair in data.pairs])
    except DataError as error:
        raise DataError(f"{data.name}: {error}", hint=error.hint) from error
    values: Values = {"pairs": whole.num_pairs, "Spearman": whole.spearman, "Pearson": whole.pearson}
    if seen is not None:
        pairs = zip(cosines, data.pairs, strict=True)
        fresh = [(cosine, pair.target) for cosine, pair in pairs if pair_key(pair.first, pair.second) not in seen]
        # None if too few are left.
        unseen = spearman([cosine for cosine, _ in fresh], [target for _, target in fresh])
        values |= {"unseen pairs": len(fresh), "Spearman unseen": unseen}
    return Score(task=data.name, values=values, size=(whole.num_pairs,))
