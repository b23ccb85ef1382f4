"""Measures what the package claims: each folder holds scripts, their results and what they show."""
