"""Lean against full, side by side: latency, throughput, memory and quality."""
