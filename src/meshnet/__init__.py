"""Meshnet: run one language model over several machines, each holding a range of its layers."""
