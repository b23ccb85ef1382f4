"""Compare the lean and full model: latency, throughput, memory and quality."""
