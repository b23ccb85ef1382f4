"""What several tests need: tiny models, made data, runs of the command line, other processes, plain computations."""
