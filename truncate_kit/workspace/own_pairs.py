"""Pairs without labels: texts that a distillation here held out, with the full model's cosines as their scores."""

from dataclasses import replace
from typing import TYPE_CHECKING

from truncate_kit.errors import TruncateKitError
from truncate_kit.workspace.places import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits

NOTE = "There are no labels: cosines of the full model between texts that were held out stand for them."


def own_pairs_of(workspace: Workspace) -> "PairSplits | None":
    """Dev pairs of the texts that chose the lean model here, test pairs of those that reported.

    None where it was not distilled, its texts are gone, or pairs were named before, which say more.
    """
    from truncate_kit.data import PairSplits
    from truncate_kit.distillation.distilling import TEXTS
    from truncate_kit.distillation.frontier import own_pairs
    from truncate_kit.distillation.learning import held_out_places
    from truncate_kit.distillation.teacher import teacher_of
    from truncate_kit.distillation.texts import TextStore
    from truncate_kit.encoders import load_encoder

    result = workspace.distilled()
    if result is None or workspace.remembered().data.name is not None:
        return None
    try:
        store = TextStore(workspace.folder / TEXTS)
        teacher = teacher_of(load_encoder(workspace.full), result.settings.layer)
        if store.counts != result.texts:  # of another distillation, which was stopped
            return None
        halves = held_out_places(len(store), result.settings)[:2]
        dev, test = (own_pairs(teacher, store.read(places.tolist())) for places in halves)
    except (OSError, ValueError, KeyError, TruncateKitError):  # gone or damaged; `distill` reads them anew
        return None
    name = f"cosines of {result.model}"
    dev, test = (replace(pairs, name=f"{name}/{split}") for pairs, split in ((dev, "dev"), (test, "test")))
    return PairSplits(name=name, dev=dev, test=test, notes=(NOTE,))
