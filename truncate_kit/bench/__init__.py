"""Lean against full, side by side: latency, throughput, memory, quality and the share of the machine's ceiling."""

from truncate_kit.bench.backends import BACKENDS, Backend
from truncate_kit.bench.quality import quality_difference
from truncate_kit.bench.results import (
    BenchedModel,
    BenchReport,
    Ceiling,
    Contestant,
    Gain,
    Machine,
    PeakMemory,
    QualityDifference,
    Timing,
)
from truncate_kit.bench.roofline import flops
from truncate_kit.bench.run import bench

__all__ = [
    "BACKENDS",
    "Backend",
    "BenchReport",
    "BenchedModel",
    "Ceiling",
    "Contestant",
    "Gain",
    "Machine",
    "PeakMemory",
    "QualityDifference",
    "Timing",
    "bench",
    "flops",
    "quality_difference",
]
