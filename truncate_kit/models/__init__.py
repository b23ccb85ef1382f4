"""Load, truncate, pool and save encoders."""
