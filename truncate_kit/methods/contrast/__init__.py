"""Contrastive training with layer-wise attention pooling, and with the poolings it is compared with."""
