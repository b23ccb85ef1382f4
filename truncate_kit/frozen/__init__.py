"""Frozen heads: what the states of all blocks say about similarity when no block is trained."""

from truncate_kit.frozen.cache import CachedStates, cached_states
from truncate_kit.frozen.results import FrozenReport, FrozenTrial, Reconstruction, WorstPair
from truncate_kit.frozen.run import finetune_frozen
from truncate_kit.frozen.settings import STEPS, FrozenSettings

__all__ = [
    "STEPS",
    "CachedStates",
    "FrozenReport",
    "FrozenSettings",
    "FrozenTrial",
    "Reconstruction",
    "WorstPair",
    "cached_states",
    "finetune_frozen",
]
