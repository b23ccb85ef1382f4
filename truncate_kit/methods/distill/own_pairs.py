"""Pairs without labels: texts, with a model's own cosines as their scores."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from truncate_kit.core.errors import DataError, TruncateKitError
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.wording import counted
from truncate_kit.core.workspace import Workspace, read_result

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.models.encoder import Encoder

NOTE = "There are no labels: cosines of the full model between texts that were held out stand for them."
SEARCH_NOTE = "{name} has no graded pairs: cosines of the model between its queries and documents stand for them."
MOST_TEXTS = 1000
"""Of each half of a retrieval set: cosines of each text with each other one are computed."""
FEWEST_TEXTS = 10
"""Of each half: a correlation over fewer pairs says nothing."""


def own_pairs_of(workspace: Workspace) -> "PairSplits | None":
    """Dev pairs of the texts that chose the lean model here, test pairs of those that reported.

    None where it was not distilled, its texts are gone, or pairs were named before, which say more.
    """
    from truncate_kit.methods.distill.distilling import TEXTS
    from truncate_kit.methods.distill.learning import teacher_of
    from truncate_kit.methods.distill.result import DistillResult
    from truncate_kit.methods.distill.texts import TextStore, held_out_places
    from truncate_kit.models.loading import load_encoder

    result = read_result(DistillResult, workspace.folder / RESULT_FILES["distill"])
    if result is None or workspace.remembered().data.name is not None:
        return None
    try:
        store = TextStore(workspace.folder / TEXTS)
        teacher = teacher_of(load_encoder(workspace.full), result.settings.layer)
        if store.counts != result.texts:  # of another distillation, which was stopped
            return None
        places = held_out_places(len(store), result.settings)[:2]
        halves = [store.read(half.tolist()) for half in places]
        return _splits(teacher, halves, f"cosines of {result.model}", NOTE)
    except (OSError, ValueError, KeyError, TruncateKitError):  # gone or damaged; `distill` reads them anew
        return None


def texts_of(data: "RetrievalSet") -> list[str]:
    """The distinct queries and documents of a set. Raises `DataError` for fewer than ten for each half."""
    texts = [text for text in dict.fromkeys((*data.queries, *data.documents)) if text]
    if len(texts) < 2 * FEWEST_TEXTS:
        raise DataError(
            f"{data.name} has {counted(len(texts), 'distinct text')}, too few to check a graph by.",
            hint=f"Give at least {2 * FEWEST_TEXTS} queries and documents, or graded pairs.",
        )
    return texts


def search_pairs_of(encoder: "Encoder", data: "RetrievalSet") -> "PairSplits":
    """Dev pairs of one half of the texts of a retrieval set, test pairs of the other half, at most 1,000 texts each.

    Raises `DataError` as `texts_of`.
    """
    texts = texts_of(data)
    random.Random(0).shuffle(texts)
    middle = min(len(texts) // 2, MOST_TEXTS)
    halves = texts[:middle], texts[middle : 2 * middle]
    return _splits(encoder, halves, f"cosines of {encoder.name} in {data.name}", SEARCH_NOTE.format(name=data.name))


def _splits(encoder: "Encoder", halves: Sequence[Sequence[str]], name: str, note: str) -> "PairSplits":
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.methods.distill.frontier import own_pairs

    dev, test = (
        replace(own_pairs(encoder, texts), name=f"{name}/{split}")
        for texts, split in zip(halves, ("dev", "test"), strict=True)
    )
    return PairSplits(name=name, dev=dev, test=test, notes=(note,))
