"""The best combination of layers: speed of the search, and what it gains on real models."""
