"""What fits on this machine and what does not, each with the command that mends it."""
