"""BERT-LC: sentence vectors from a combination of layers, found by exact search over all of them."""
