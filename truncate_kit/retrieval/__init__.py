"""Exact search over the documents of a retrieval set, its scores, and two models on one index."""
