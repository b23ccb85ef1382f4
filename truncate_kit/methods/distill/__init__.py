"""The smallest encoder within a budget: which blocks to keep, and the full model's vectors learned from raw text."""
