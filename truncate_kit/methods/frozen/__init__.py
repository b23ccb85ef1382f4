"""Frozen heads: similarity from the states of untrained blocks."""
