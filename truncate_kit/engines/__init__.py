"""Where tasks run: one after another in this process, in several processes of this machine, or on a Ray cluster."""

from truncate_kit.engines.base import Engine, Lost, Send, Sequential, Steps, Work
from truncate_kit.engines.processes import Processes
from truncate_kit.engines.ray_cluster import RayCluster

__all__ = ["Engine", "Lost", "Processes", "RayCluster", "Send", "Sequential", "Steps", "Work"]
