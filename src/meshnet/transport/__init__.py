"""Moves frames between nodes: over gRPC, or within one process."""
