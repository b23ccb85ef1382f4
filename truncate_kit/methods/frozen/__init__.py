"""Frozen heads: similarity from the states of all blocks, none of them trained."""
