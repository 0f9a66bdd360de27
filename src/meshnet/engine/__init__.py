"""Engines: whatever computes a shard, behind :class:`~meshnet.engine.base.ShardEngine`."""
