"""TMFT: configuration, objectives and the lean loop."""
