"""A conversation with a chain of nodes: text in, text out."""
