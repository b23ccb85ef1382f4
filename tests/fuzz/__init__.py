"""Fuzzing: valid files of every kind that is read, changed at random, and what must hold whatever comes of it."""
