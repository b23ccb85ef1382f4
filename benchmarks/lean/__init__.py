"""Any subset of blocks that learns the full model's vectors: what it keeps, what it costs, and what decides it."""
