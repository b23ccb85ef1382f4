"""Truncated encoders on a GPU against other runtimes."""
