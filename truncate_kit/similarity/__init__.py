"""How alike layers are: HSIC, CKA in memory and streamed, label-free scores, drop prediction."""
