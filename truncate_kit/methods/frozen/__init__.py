"""Frozen heads: similarity from the states of frozen blocks."""
