"""Frames to bytes and back: one serialised ``SessionRequest`` or ``SessionResponse`` each.

What comes in is checked: whatever doesn't obey the contract raises :class:`MalformedFrameError`
naming the field. What goes out is the caller's own: a value that the wire can't carry raises
:class:`InvalidArgumentError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, assert_never

from google.protobuf.message import DecodeError, Message

from meshnet.domain.errors import InputError, InvalidArgumentError, MalformedFrameError
from meshnet.domain.frames import (
    AttachReturn,
    Cancel,
    DecodeFrame,
    Generate,
    GenerationDone,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    ReturnedTokens,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    SignedWork,
    StepAck,
    TokenReply,
)
from meshnet.wire import convert_receipts as receipts
from meshnet.wire import convert_replies as replies
from meshnet.wire import convert_requests as requests
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.codec import malformed
from meshnet.wire.compression import Compression

MERGEABLE = (DecodeFrame, TokenReply, ReturnedTokens)
"""Of these, two serialised frames one right behind the other are one frame with both's content.

That is how Protocol Buffers merge a repeated field, in every language.
"""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def encode_request(request: SeamRequest, compression: Compression = Compression.NONE) -> bytes:
    """The request's wire form; ``compression`` packs the tensors of a prefill chunk."""
    return fitting(type(request), lambda: request_to_proto(request, compression))


def decode_request(data: bytes, max_bytes: int) -> SeamRequest:
    """The request in ``data``; takes no more than ``max_bytes`` for a bundle's tensors."""
    message = parse(pb.SessionRequest, data)
    return checked(lambda: request_from_proto(message, max_bytes))


def encode_reply(reply: SeamReply) -> bytes:
    """The reply's wire form."""
    return fitting(type(reply), lambda: reply_to_proto(reply))


def decode_replies(data: bytes) -> tuple[SeamReply, ...]:
    """The replies in ``data``: one, or as many tokens as travelled together."""
    message = parse(pb.SessionResponse, data)
    return checked(lambda: replies_from_proto(message))


def fitting(kind: type, build: Callable[[], Message]) -> bytes:
    """The bytes of a message; a value that its fields can't hold is the caller's fault."""
    try:
        return build().SerializeToString()
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            "frame", f"a {kind.__name__} holds a value that the wire can't carry: {error}"
        ) from error


def parse(kind: type[M], data: bytes) -> M:
    """The message in ``data``; raises :class:`MalformedFrameError` if that isn't one."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = kind.DESCRIPTOR.name
        raise MalformedFrameError("frame", f"the bytes aren't a {name}: {error}") from error


def checked(read: Callable[[], T]) -> T:
    """What ``read`` gives; the domain's complaints about its input become malformed frames."""
    try:
        return read()
    except InputError as error:
        raise malformed(error) from error


def request_to_proto(request: SeamRequest, compression: Compression) -> pb.SessionRequest:
    """The message of a request."""
    message = pb.SessionRequest()
    match request:
        case DecodeFrame():
            requests.write_decode(message.decode, request)
        case PrefillChunk():
            requests.write_prefill(message.prefill, request, compression)
        case OpenSession():
            message.open.CopyFrom(requests.open_to_proto(request))
        case Generate():
            message.generate.CopyFrom(requests.generate_to_proto(request))
        case GrantTokens():
            message.grant.CopyFrom(pb.GrantTokens(handle=request.handle, tokens=request.tokens))
        case Cancel():
            message.cancel.CopyFrom(pb.CancelSignal(handle=request.handle, reason=request.reason))
        case Release():
            message.release.CopyFrom(pb.ReleaseSignal(handle=request.handle, keep=request.keep))
        case ReturnedTokens():
            for reply in request.replies:
                replies.write_token(message.returned, reply)
        case AttachReturn():
            message.attach_return.CopyFrom(requests.attach_to_proto(request))
        case SignedWork():
            message.receipt.CopyFrom(receipts.signed_to_proto(request))
        case _:
            assert_never(request)
    return message


def request_from_proto(message: pb.SessionRequest, max_bytes: int) -> SeamRequest:
    """The request of a message."""
    request: SeamRequest
    match message.WhichOneof("request"):
        case "decode":
            request = requests.decode_frame_from_proto(message.decode)
        case "prefill":
            request = requests.prefill_from_proto(message.prefill, max_bytes)
        case "open":
            request = requests.open_from_proto(message.open)
        case "generate":
            request = requests.generate_from_proto(message.generate)
        case "grant":
            request = GrantTokens(message.grant.handle, message.grant.tokens)
        case "cancel":
            request = Cancel(message.cancel.handle, message.cancel.reason)
        case "release":
            request = Release(message.release.handle, message.release.keep)
        case "returned":
            request = ReturnedTokens(replies.tokens_from_proto(message.returned))
        case "attach_return":
            request = requests.attach_from_proto(message.attach_return)
        case "receipt":
            request = receipts.signed_from_proto(message.receipt)
        case _:
            raise MalformedFrameError("request", "none that is known is set")
    return request


def reply_to_proto(reply: SeamReply) -> pb.SessionResponse:
    """The message of a reply."""
    message = pb.SessionResponse()
    match reply:
        case TokenReply():
            replies.write_token(message.tokens, reply)
        case StepAck():
            message.ack.CopyFrom(replies.ack_to_proto(reply))
        case SessionOpened():
            message.opened.CopyFrom(replies.opened_to_proto(reply))
        case SessionFailed():
            message.failed.CopyFrom(replies.failed_to_proto(reply))
        case SessionReleased():
            message.released.CopyFrom(replies.released_to_proto(reply))
        case GenerationDone():
            message.done.CopyFrom(replies.done_to_proto(reply))
        case SignedWork():
            message.receipt.CopyFrom(receipts.signed_to_proto(reply))
        case _:
            assert_never(reply)
    return message


def replies_from_proto(message: pb.SessionResponse) -> tuple[SeamReply, ...]:
    """The replies of a message."""
    reply: SeamReply
    match message.WhichOneof("response"):
        case "tokens":
            return replies.tokens_from_proto(message.tokens)
        case "ack":
            reply = replies.ack_from_proto(message.ack)
        case "opened":
            reply = replies.opened_from_proto(message.opened)
        case "failed":
            reply = replies.failed_from_proto(message.failed)
        case "released":
            reply = replies.released_from_proto(message.released)
        case "done":
            reply = replies.done_from_proto(message.done)
        case "receipt":
            reply = receipts.signed_from_proto(message.receipt)
        case _:
            raise MalformedFrameError("response", "none that is known is set")
    return (reply,)
