"""Tasks of the Massive Text Embedding Benchmark, through the `mteb` package."""
