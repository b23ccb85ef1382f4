"""Trials over layers and seeds, strategies that choose among them, and the store that survives a kill."""
