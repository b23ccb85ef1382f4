"""How long the demo takes, and what it prints."""
