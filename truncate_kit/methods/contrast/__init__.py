"""Contrastive training with layer-wise attention pooling and its rivals."""
