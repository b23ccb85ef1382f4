"""Measure layers before training and predict the drop."""
