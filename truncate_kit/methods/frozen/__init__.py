"""Frozen heads: what the states of all blocks say about similarity when no block is trained."""
