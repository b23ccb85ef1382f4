"""Exact search over the documents of a retrieval set, its scores, by layer too, and two models on one index."""
