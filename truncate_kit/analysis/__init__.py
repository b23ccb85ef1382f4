"""What the layers of a model show before any training, and whether scores are expected to drop at its end."""
