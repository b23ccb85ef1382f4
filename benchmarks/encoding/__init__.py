"""Encoding of whole sets against sentence-transformers."""
