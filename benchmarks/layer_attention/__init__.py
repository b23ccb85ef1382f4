"""Attention over the layers against other poolings, under each contrastive objective."""
