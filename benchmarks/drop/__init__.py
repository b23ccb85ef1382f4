"""Whether a predicted drop is right."""
