"""Distillation: choose blocks within a budget, and train them on raw text to match the full model's vectors."""
