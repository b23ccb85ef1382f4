"""Trials over layers and seeds, strategies that choose among them, and the store that survives a kill."""

from truncate_kit.sweep.finetune import finetune
from truncate_kit.sweep.picking import PICK_RULES, pick
from truncate_kit.sweep.results import LayerScores, SweepResult, SweepSettings, Trial
from truncate_kit.sweep.strategies import STRATEGIES

__all__ = ["PICK_RULES", "STRATEGIES", "LayerScores", "SweepResult", "SweepSettings", "Trial", "finetune", "pick"]
