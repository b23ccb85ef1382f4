"""Scores of a model and its truncations on the suites."""
