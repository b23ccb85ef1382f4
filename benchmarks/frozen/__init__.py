"""Heads over the states of frozen models."""
