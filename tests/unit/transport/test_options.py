"""What gRPC is told about a connection."""

from __future__ import annotations

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.nodes import FlowControl
from meshnet.transport.options import GrpcOptions, max_frame_bytes
from tests.support.identities import member


def test_a_frame_may_be_somewhat_larger_than_a_chunk() -> None:
    assert max_frame_bytes(FlowControl(max_chunk_bytes=1000)) == 1000 + 2**20


def test_both_ends_notice_a_silent_peer() -> None:
    options = GrpcOptions(keepalive_seconds=2, keepalive_timeout_seconds=0.5)
    for arguments in (dict(options.channel_arguments(7)), dict(options.server_arguments(7))):
        assert arguments["grpc.keepalive_time_ms"] == 2000
        assert arguments["grpc.keepalive_timeout_ms"] == 500
        assert arguments["grpc.http2.ping_timeout_ms"] == 500
        assert arguments["grpc.keepalive_permit_without_calls"] == 1
        assert arguments["grpc.max_receive_message_length"] == 7


def test_a_port_is_never_shared_and_a_stream_never_retried() -> None:
    assert dict(GrpcOptions().server_arguments(1))["grpc.so_reuseport"] == 0
    assert dict(GrpcOptions().channel_arguments(1))["grpc.enable_retries"] == 0


def test_with_tls_a_channel_is_for_one_node_or_for_any_node() -> None:
    name, identity = "grpc.ssl_target_name_override", member()
    secured = GrpcOptions(tls=identity)
    assert dict(secured.channel_arguments(1))[name] == "node.meshnet"
    held = dict(secured.channel_arguments(1, identity.node_id))[name]
    assert held == f"{identity.node_id}.meshnet"
    assert name not in dict(GrpcOptions().channel_arguments(1, identity.node_id))


@pytest.mark.parametrize(
    "options", [{"keepalive_seconds": 0.5}, {"keepalive_timeout_seconds": 0.0}]
)
def test_a_time_that_grpc_does_not_keep_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        GrpcOptions(**options)  # type: ignore[arg-type]
