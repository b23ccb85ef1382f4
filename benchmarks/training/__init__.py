"""Training throughput against other trainers."""
