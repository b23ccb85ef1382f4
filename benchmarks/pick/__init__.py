"""Which pick rule loses the fewest test points."""
