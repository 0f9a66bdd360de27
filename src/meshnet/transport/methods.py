"""The calls of service ``ShardRuntime``, read off the schema."""

from __future__ import annotations

from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ShardRuntime"]
SERVICE_NAME: str = _SERVICE.full_name


def method_path(name: str) -> str:
    """The path of a call in HTTP/2; ``KeyError`` for one that the schema doesn't have."""
    return f"/{SERVICE_NAME}/{_SERVICE.methods_by_name[name].name}"
