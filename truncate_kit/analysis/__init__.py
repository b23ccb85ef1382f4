"""Measures of a model's layers before training, and the predicted drop."""
