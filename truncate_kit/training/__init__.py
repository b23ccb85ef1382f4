"""Train encoders."""
