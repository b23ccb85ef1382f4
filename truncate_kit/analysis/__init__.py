"""What the layers of a model show before any training, and whether its end is expected to fall."""
