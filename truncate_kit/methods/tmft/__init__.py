"""Trials over layers and seeds, search strategies, and sweeps."""
