"""Replies that come up a seam, and their messages, in pairs.

See :mod:`meshnet.wire.convert_values` for what is raised.
"""

from __future__ import annotations

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.frames import (
    GenerationDone,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import FinishReason
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert_nodes import (
    flow_from_proto,
    flow_to_proto,
    timings_from_proto,
    timings_to_proto,
)
from meshnet.wire.convert_values import (
    cache_result_from_proto,
    cache_result_to_proto,
    known,
    require,
    token_from_proto,
    token_to_proto,
)
from meshnet.wire.status import status_from_proto, status_to_proto
from meshnet.wire.unknown import put_unknown, unknown_of

_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def opened_to_proto(value: SessionOpened) -> pb.SessionOpened:
    """See :class:`SessionOpened`."""
    least, most = value.pieces or (0, 0)
    return pb.SessionOpened(
        handle=value.handle,
        flow=flow_to_proto(value.flow),
        step_tokens=value.step_tokens,
        least_piece=least,
        most_piece=most,
        cached_tokens=value.cached_tokens,
        replayed_tokens=value.replayed_tokens,
    )


def opened_from_proto(message: pb.SessionOpened) -> SessionOpened:
    """See :class:`SessionOpened`."""
    return SessionOpened(
        message.handle,
        flow_from_proto(message.flow),
        message.step_tokens,
        (message.least_piece, message.most_piece) if message.most_piece else None,
        message.cached_tokens,
        message.replayed_tokens,
    )


def ack_to_proto(value: StepAck) -> pb.Ack:
    """See :class:`StepAck`."""
    return pb.Ack(
        handle=value.handle,
        idempotency_step=value.step,
        duplicate=value.duplicate,
        cache_result=cache_result_to_proto(value.cache),
    )


def ack_from_proto(message: pb.Ack) -> StepAck:
    """See :class:`StepAck`."""
    require(message, "cache_result")
    return StepAck(
        handle=message.handle,
        step=message.idempotency_step,
        duplicate=message.duplicate,
        cache=cache_result_from_proto(message.cache_result),
    )


def write_token(message: pb.TokenFrame, value: TokenReply) -> None:
    """Add one reply to a frame in place."""
    reply = message.replies.add(
        handle=value.handle,
        idempotency_step=value.step,
        token=token_to_proto(value.token),
    )
    put_unknown(value.unknown, reply)


def tokens_from_proto(message: pb.TokenFrame) -> tuple[TokenReply, ...]:
    """The replies of a frame."""
    if not message.replies:
        raise MalformedFrameError("tokens.replies", "none are there")
    return tuple([_token_reply_from_proto(reply) for reply in message.replies])


def _token_reply_from_proto(message: pb.TokenReply) -> TokenReply:
    require(message, "token")
    token = token_from_proto(message.token)
    return TokenReply(message.handle, message.idempotency_step, token, unknown_of(message))


def failed_to_proto(value: SessionFailed) -> pb.SessionFailed:
    """See :class:`SessionFailed`."""
    return pb.SessionFailed(handle=value.handle, error=status_to_proto(value.status))


def failed_from_proto(message: pb.SessionFailed) -> SessionFailed:
    """See :class:`SessionFailed`."""
    status = status_from_proto(message.error)
    if status.ok:
        raise MalformedFrameError("failed.error", "a failure without an error code")
    return SessionFailed(message.handle, status)


def released_to_proto(value: SessionReleased) -> pb.SessionReleased:
    """See :class:`SessionReleased`."""
    return pb.SessionReleased(
        handle=value.handle, timings=[timings_to_proto(timing) for timing in value.timings]
    )


def released_from_proto(message: pb.SessionReleased) -> SessionReleased:
    """See :class:`SessionReleased`."""
    timings = tuple(timings_from_proto(timing) for timing in message.timings)
    return SessionReleased(message.handle, timings)


def done_to_proto(value: GenerationDone) -> pb.GenerationDone:
    """See :class:`GenerationDone`."""
    return pb.GenerationDone(
        handle=value.handle,
        finish_reason=_FINISH_REASONS[value.finish_reason],
        timings=[timings_to_proto(timing) for timing in value.timings],
    )


def done_from_proto(message: pb.GenerationDone) -> GenerationDone:
    """See :class:`GenerationDone`."""
    return GenerationDone(
        handle=message.handle,
        finish_reason=known(_FINISH_REASONS, message.finish_reason, "finish_reason"),
        timings=tuple(timings_from_proto(timing) for timing in message.timings),
    )
