"""Lean against full, side by side: latency, throughput, memory, quality and the share of the machine's ceiling."""
