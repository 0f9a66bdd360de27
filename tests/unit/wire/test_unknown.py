"""A field of a newer peer survives a parse and serialise hop."""

from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from meshnet.domain.frames import (
    NOTHING_UNKNOWN,
    DecodeFrame,
    OpenSession,
    PrefillChunk,
    TokenReply,
)
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert import decode_replies, decode_request, encode_reply, encode_request
from tests.support.frames import REPLIES, REQUESTS

BOUND = 2**20
LATER_FIELDS = bytes([0xF8, 0x3F, 0x05]) + bytes([0xFA, 0x3F, 0x02]) + b"ok"
"""Field 1023 twice: as a varint, and as bytes."""

REQUEST_PLACES: dict[str, tuple[type, Callable[[pb.SessionRequest], Message]]] = {
    "open": (OpenSession, lambda message: message.open),
    "open.envelope": (OpenSession, lambda message: message.open.envelope),
    "prefill": (PrefillChunk, lambda message: message.prefill),
    "prefill.envelope": (PrefillChunk, lambda message: message.prefill.envelope),
    "decode.steps": (DecodeFrame, lambda message: message.decode.steps[0]),
}


@pytest.mark.parametrize("place", REQUEST_PLACES)
def test_a_requests_unknown_fields_survive_a_hop(place):
    kind, part = REQUEST_PLACES[place]
    frame = next(request for request in REQUESTS if isinstance(request, kind))
    message = pb.SessionRequest.FromString(encode_request(frame))
    part(message).MergeFromString(LATER_FIELDS)
    newer = message.SerializeToString()
    assert encode_request(decode_request(newer, BOUND)) == newer


def test_a_tokens_unknown_fields_survive_a_hop():
    reply = next(reply for reply in REPLIES if isinstance(reply, TokenReply))
    message = pb.SessionResponse.FromString(encode_reply(reply))
    message.tokens.replies[0].MergeFromString(LATER_FIELDS)
    newer = message.SerializeToString()
    (decoded,) = decode_replies(newer)
    assert encode_reply(decoded) == newer


def test_frames_of_this_version_carry_nothing_unknown():
    for request in REQUESTS:
        decoded = decode_request(encode_request(request), BOUND)
        if isinstance(decoded, OpenSession | PrefillChunk):
            assert decoded.unknown is NOTHING_UNKNOWN
