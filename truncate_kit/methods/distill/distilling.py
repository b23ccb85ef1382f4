"""Distillation from end to end: texts, full vectors, which blocks, learning, the choice, the saved model."""

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.profile import ANALYSED_TEXTS, predicted_drop
from truncate_kit.data import PairSplits, RetrievalSet, splits_for
from truncate_kit.errors import DataError, TruncateKitError
from truncate_kit.files import local_path, unfinished
from truncate_kit.methods.distill.choosing import Distillation, check_budget, check_size
from truncate_kit.methods.distill.learning import read_vectors, teacher_of, teacher_vectors
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, Budget, DistillSettings
from truncate_kit.methods.distill.texts import RawTexts, TextStore, store_texts
from truncate_kit.models import Encoder
from truncate_kit.parallel import Engine
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.seen import without_seen
from truncate_kit.store import RunStore, output_folder, run_key
from truncate_kit.training.cutting import cut_vocabulary
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.evaluators import check_queries, scored_as

TEXTS = Path("distillation") / "texts"
FEWEST_TESTED = 3  # pairs of which there is a correlation


def find_aim(
    encoder: Encoder, texts: Iterable[str], budget: Budget | None = None, *, max_length: int | None = None
) -> tuple[int | None, DropPrediction | None]:
    """Return the layer before a predicted drop, or the first one that has the blocks which the budget names; and why.

    The layer is for `DistillSettings`, None the last one. The drop is None where none is predicted. A drop with no
    layer beside it: the blocks of the budget reach into it, and the vectors of the model's end are no good aim.

    Args:
        encoder: The full model.
        texts: Raw texts as for `distill`; the first `ANALYSED_TEXTS` are read.
        budget: As for `distill`.
        max_length: Of the reference's texts, in tokens.

    Raises:
        UsageError, ModelError, LayerOutOfRangeError: As `check_budget`, before anything is looked at. A model or texts
            that cannot be analysed predict nothing: what follows refuses them, or learns all the same.
    """
    budget = budget or Budget()
    check_budget(budget, encoder)  # looking for a drop takes a minute
    drop = None
    with suppress(TruncateKitError):
        drop = predicted_drop(encoder, list(islice(texts, ANALYSED_TEXTS)), max_length=max_length)
    if drop is None or not drop.falls or not drop.from_layer:
        return None, None
    layer = max(drop.from_layer - 1, LOWEST_TAUGHT, *(budget.named_blocks or [budget.number]))
    return (layer if layer < encoder.depth else None), drop


@isolated()
def distill(
    encoder: Encoder,
    texts: Iterable[str] | RawTexts,
    *,
    out: Path,
    budget: Budget | None = None,
    settings: DistillSettings | None = None,
    data: PairSplits | RetrievalSet | None = None,
    before: str = "",
    engine: Engine | None = None,
    group: Group = ALONE,
    progress: ProgressOption = False,
) -> DistillResult:
    """Find the smallest choice of blocks within a budget that gives the full model's vectors, and save it.

    A run that was killed continues with the same call and ends with the same model.

    Args:
        encoder: The full model; it is not changed.
        texts: Raw texts to learn from, as long as those to be served; `RawTexts` has queries and what to keep out.
            Texts of dev and test, and of a retrieval set, are always left out.
        out: Gets `lean/` and `full/` (sentence-transformers folders); vectors and trials lie beside them.
        budget: Which size; None is the fewest blocks within a point.
        settings: How the vectors are learned.
        data: What chooses instead of agreement with the full model, and what is reported: dev and test of
            graded pairs (of words as the seed divides them), or two halves of the queries of a retrieval set.
        before: What the model card says was done to `encoder` before.
        engine: Where the full model's vectors are computed; None is here.
        group: Processes that learn together; all must see `out`, the leading one alone reads and writes there.
        progress: True draws bars and logs; else what is called as the work goes on.

    Raises:
        UsageError: The budget cannot be met, or `out` holds the model to start from.
        DataError: Too few texts, neither dev nor test, classes, or pairs on which no correlation is defined.
        ModelError: Vectors are made from several layers, or no ordinary checkpoint can hold the blocks.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    out, budget, progress = local_path(out), budget or Budget(), reporter(progress)
    settings = settings or DistillSettings()
    teacher, (data, chosen_by, num_seen) = teacher_of(encoder, settings.layer), _divided(data, settings, encoder)
    raw = texts if isinstance(texts, RawTexts) else RawTexts(texts=texts)
    raw = replace(raw, exclude={*raw.exclude, *_texts_of(data)})
    # All that can be wrong is said before the full model's vectors, which may take hours.
    check_budget(budget, encoder, None if teacher is encoder else teacher.depth)
    smallest = teacher if raw.vocabulary is None else cut_vocabulary(teacher, raw.vocabulary)[0]
    check_size(budget, smallest)
    if isinstance(data, RetrievalSet):
        check_queries(data)
    with ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean", "full"))
            held.enter_context(unfinished((out / TEXTS).parent, shared=True))
            store = store_texts(teacher, raw, out / TEXTS, limit=settings.max_texts, progress=progress)
            beside = store.folder.parent / store.digest[:16]  # the full model's graph and its vectors of these texts
            teacher_vectors(teacher, store, beside, engine=engine, progress=progress)
        group.agree(None)  # texts and vectors are there
        store = TextStore(out / TEXTS)
        vectors = read_vectors(teacher, store, store.folder.parent / store.digest[:16])
        runs, searches = _stores(out / "trials", encoder, store, settings, data, group)
        if group.leads:
            held.enter_context(runs.open())
            held.enter_context(searches.open())
        work = Distillation(
            *(encoder, teacher, store, vectors, settings, data, runs, group, progress),
            budget=budget,
            vocabulary=raw.vocabulary,
            spared=teacher.num_parameters - smallest.num_parameters,
            searches=searches,
        )
        result = work.run(out, before=before, chosen_by=chosen_by, num_seen=num_seen) if group.leads else work.help()
        return cast(DistillResult, group.agree(result))  # the leading process has one


def _divided(
    data: PairSplits | RetrievalSet | None, settings: DistillSettings, encoder: Encoder
) -> tuple[PairSplits | RetrievalSet | None, PairSplits | None, int]:
    """Return pairs as the seed divides them, the pairs as they were given, and the number of seen test pairs.

    Test pairs that the full model has seen are left out. Raises `DataError` where there is nothing to choose by.
    """
    if data is None or isinstance(data, RetrievalSet):
        return data, None, 0
    given, data = data, splits_for(data, settings.seed)
    parts = [part for part in (data.dev, data.test) if part is not None]
    if not parts:
        hint = "Give a folder with dev and test files, or one file to be divided."
        raise DataError(f"{data.name} has neither dev nor test pairs, and no others are used here.", hint=hint)
    for part in parts:
        part.check_graded()
    kept, known = _unseen(data, encoder)
    return kept, given, known


def _unseen(data: PairSplits, encoder: Encoder) -> tuple[PairSplits | None, int]:
    """Leave out the test pairs that the full model has seen, and count them.

    Of fewer than `FEWEST_TESTED` there is no test.
    """
    if data.test is None:
        return data, 0
    kept, known = without_seen(data, encoder.seen)
    if not known or kept.test is None:
        return data, 0
    if len(kept.test) < FEWEST_TESTED:
        return (None if kept.train is None and kept.dev is None else replace(kept, test=None)), known
    return kept, known


def _texts_of(data: PairSplits | RetrievalSet | None) -> tuple[str, ...]:
    """Return the texts that choose or report."""
    if data is None:
        return ()
    if isinstance(data, RetrievalSet):
        return tuple(data.held_out)
    return tuple(text for part in (data.dev, data.test) if part is not None for text in part.texts())


def _stores(
    folder: Path,
    encoder: Encoder,
    texts: TextStore,
    settings: DistillSettings,
    data: PairSplits | RetrievalSet | None,
    group: Group,
) -> tuple[RunStore, RunStore]:
    """Return stores of what depends on how students learn, and of what does not: scores before it, and speeds."""
    found = []
    plain = replace(settings, frontier=False)
    usual = DistillSettings(layer=settings.layer, held_out=settings.held_out, seed=settings.seed)
    for kind, some in (("distill", plain), ("search", usual)):
        # The peak rates where many blocks go and where few do: defaults change.
        rates = [some.rate(encoder.width, left_out=share) for share in (1.0, 0.0)]
        judged = "" if data is None else data.fingerprint() + scored_as(data, encoder)
        parts = [f"{some.to_json()} {rates} {judged}", texts.digest]
        if kind == "distill" and group.size > 1:
            parts.append(str(group.size))
        description = {"model": encoder.name} | ({"distill": some.to_dict()} if kind == "distill" else {})
        found.append(RunStore(folder, run_key(encoder, kind, *parts), description))
    return found[0], found[1]
