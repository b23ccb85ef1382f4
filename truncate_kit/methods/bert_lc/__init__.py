"""BERT-LC: sentence vectors from a searched combination of layers."""
