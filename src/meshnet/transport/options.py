"""How a gRPC connection is kept: sizes, and how a silent peer is noticed."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.transport.certificates import Role, host_name_of
from meshnet.transport.tls import IdentitySource
from meshnet.wire.compression import Compression

FRAME_SLACK_BYTES = 2**20
"""What a frame may hold besides its tensors."""


def max_frame_bytes(flow: FlowControl) -> int:
    """Largest serialised frame under these bounds."""
    return flow.max_chunk_bytes + FRAME_SLACK_BYTES


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Options of either end of a connection; the defaults suit a LAN.

    A peer whose host died without a word is noticed after ``keepalive_seconds`` plus
    ``keepalive_timeout_seconds`` at most.
    """

    keepalive_seconds: float = 5.0
    """A connection that was silent this long is asked whether it lives; gRPC's least is 1."""
    keepalive_timeout_seconds: float = 3.0
    """How long the answer may take."""
    compression: Compression = Compression.NONE
    """How tensors of prefill chunks are packed on the way out."""
    tls: IdentitySource | None = None
    """Who this end is. With it every connection is mutual TLS; None is for loopback and trusted
    networks, where nobody proves anything."""

    def __post_init__(self) -> None:
        for name, low in (("keepalive_seconds", 1.0), ("keepalive_timeout_seconds", 0.1)):
            if not low <= getattr(self, name) <= 3600:
                raise InvalidArgumentError(name, f"{getattr(self, name)} isn't {low:g} to 3600")

    def channel_arguments(
        self, max_frame_bytes: int, node_id: NodeId | None = None
    ) -> list[tuple[str, int | str]]:
        """gRPC's arguments for a client's channel that takes frames up to a size.

        With TLS, the certificate at the other end must be that of ``node_id``, or of any node of
        the cluster for None. Raises :class:`InvalidArgumentError` ("node_id") for what is no id.
        """
        name = Role.NODE.host_name if node_id is None else host_name_of(node_id)
        named = [("grpc.ssl_target_name_override", name)] if self.tls is not None else []
        return [
            *self._common_arguments(max_frame_bytes),
            *named,
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # For all its name, how long an attempt may take: over far links and the relay, TCP and
            # TLS take several round trips.
            ("grpc.min_reconnect_backoff_ms", 3000),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]

    def server_arguments(self, max_frame_bytes: int) -> list[tuple[str, int]]:
        """gRPC's arguments for a server that takes frames up to a size."""
        return [
            *self._common_arguments(max_frame_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 10),
            ("grpc.http2.max_ping_strikes", 0),
        ]

    def _common_arguments(self, max_frame_bytes: int) -> list[tuple[str, int]]:
        timeout_millis = round(self.keepalive_timeout_seconds * 1000)
        return [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", max_frame_bytes),
            ("grpc.keepalive_time_ms", round(self.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", timeout_millis),
            # The ping's own timeout is the one that ends a silent connection; it is a minute long
            # unless it is set too.
            ("grpc.http2.ping_timeout_ms", timeout_millis),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
