"""Load, truncate, pool and save encoders of every known family."""
