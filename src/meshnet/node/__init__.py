"""A node: one shard's sessions, its engine thread, and the process that holds both."""
