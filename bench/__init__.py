"""Measurements: one script a question, each runs what it compares in one go."""
