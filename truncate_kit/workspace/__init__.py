"""The folder in which each step finds what the one before it left: its places, leakage, contents."""
