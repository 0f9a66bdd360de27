"""The Python codec over the canonical vectors, which a codec in another language reads as well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.frames import PrefillChunk
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert import (
    checked,
    decode_replies,
    decode_request,
    encode_reply,
    encode_request,
    parse,
)
from meshnet.wire.convert_nodes import (
    capability_from_proto,
    capability_to_proto,
    health_from_proto,
    health_to_proto,
)
from meshnet.wire.convert_values import key_from_fields, require
from meshnet.wire.status import status_from_proto, status_to_proto

FOLDER = Path(__file__).parents[3] / "conformance"
CASES = json.loads((FOLDER / "vectors.json").read_text())
VECTORS: dict[str, dict[str, Any]] = {case["name"]: case for case in CASES["vectors"]}
MALFORMED: dict[str, dict[str, Any]] = {case["name"]: case for case in CASES["malformed"]}

UNKNOWN_KINDS = {0: "varint", 1: "fixed64", 2: "bytes", 5: "fixed32"}

NEVER_WRITTEN = {
    "BYTE_ORDER_BIG_ENDIAN",  # every reader refuses it
    "PHASE_DECODE",  # decode steps have no envelope of their own
    "GetCapabilityRequest.padding",  # takes room and means nothing: no codec reads it
}


def _bytes(name: str) -> bytes:
    return (FOLDER / "vectors" / f"{name}.bin").read_bytes()


def _request(data: bytes, max_bytes: int) -> bytes:
    return encode_request(decode_request(data, max_bytes))


def _replies(data: bytes, _max_bytes: int) -> bytes:
    # Token frames one behind the other are one frame; parsing makes them so.
    written = b"".join(map(encode_reply, decode_replies(data)))
    return pb.SessionResponse.FromString(written).SerializeToString()


def _capability(data: bytes, _max_bytes: int) -> bytes:
    answer = parse(pb.GetCapabilityResponse, data)
    require(answer, "capability")
    held = checked(lambda: capability_from_proto(answer.capability))
    return pb.GetCapabilityResponse(capability=capability_to_proto(held)).SerializeToString()


def _health(data: bytes, _max_bytes: int) -> bytes:
    report = checked(lambda: health_from_proto(parse(pb.HealthResponse, data)))
    return health_to_proto(report).SerializeToString()


def _release(data: bytes, _max_bytes: int) -> bytes:
    request = parse(pb.ReleaseRequest, data)
    key = checked(lambda: key_from_fields(request.route_session_id, request.route_epoch))
    return pb.ReleaseRequest(
        route_session_id=key.session_id, route_epoch=key.route_epoch
    ).SerializeToString()


def _cancel(data: bytes, _max_bytes: int) -> bytes:
    request = parse(pb.CancelRequest, data)
    key = checked(lambda: key_from_fields(request.route_session_id, request.route_epoch))
    return pb.CancelRequest(
        route_session_id=key.session_id, route_epoch=key.route_epoch, reason=request.reason
    ).SerializeToString()


def _error(data: bytes, _max_bytes: int) -> bytes:
    return status_to_proto(status_from_proto(parse(pb.ShardError, data))).SerializeToString()


REWRITE: Mapping[str, Callable[[bytes, int], bytes]] = {
    "SessionRequest": _request,
    "SessionResponse": _replies,
    "GetCapabilityResponse": _capability,
    "HealthResponse": _health,
    "ReleaseRequest": _release,
    "CancelRequest": _cancel,
    "ShardError": _error,
}
"""To domain values and back to bytes, by the type of the message."""


def _fields(message: Message) -> dict[str, Any]:
    """Every field that is set, and every unknown one, in the form of vectors.json."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        many = field.is_repeated
        values = [_value(field, each) for each in (value if many else [value])]
        found[field.name] = values if many else values[0]
    unknown = [
        {"number": field.field_number, UNKNOWN_KINDS[field.wire_type]: _plain(field.data)}
        for field in _unknown(message)
    ]
    return found | ({"@unknown": unknown} if unknown else {})


def _unknown(message: Message) -> Any:
    """The stubs don't know that the set can be iterated over."""
    return UnknownFieldSet(message)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


@pytest.mark.parametrize("name", VECTORS)
def test_every_field_of_a_vector_is_what_its_case_says(name: str) -> None:
    case = VECTORS[name]
    kind: type[Message] = getattr(pb, case["message"])
    assert _fields(kind.FromString(_bytes(name))) == case["fields"]


@pytest.mark.parametrize("name", VECTORS)
def test_a_parse_and_serialise_hop_keeps_every_byte(name: str) -> None:
    kind: type[Message] = getattr(pb, VECTORS[name]["message"])
    assert kind.FromString(_bytes(name)).SerializeToString(deterministic=True) == _bytes(name)


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_means_the_value_that_is_written_as_its_case_says(name: str) -> None:
    case = VECTORS[name]
    written = REWRITE[case["message"]](_bytes(name), CASES["max_bytes"])
    assert written.hex() == _bytes(case.get("means", name)).hex()


@pytest.mark.parametrize("name", [name for name in VECTORS if "tensors" in VECTORS[name]])
def test_tensors_are_unpacked_and_put_together(name: str) -> None:
    chunk = decode_request(_bytes(name), CASES["max_bytes"])
    assert isinstance(chunk, PrefillChunk)
    assert [bytes(t.data).hex() for t in chunk.boundary.tensors] == VECTORS[name]["tensors"]


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_refused_by_the_name_of_the_field(name: str) -> None:
    case = MALFORMED[name]
    kind = case.get("message") or VECTORS[case["base"]]["message"]
    data = (FOLDER / "malformed" / f"{name}.bin").read_bytes()
    with pytest.raises(MalformedFrameError) as caught:
        REWRITE[kind](data, case.get("max_bytes", CASES["max_bytes"]))
    assert caught.value.details["field"] == case["field"]


def _occurring(kind: Any, fields: Mapping[str, Any]) -> Iterable[str]:
    """The names of all fields and enum values within a message's fields."""
    for name, value in fields.items():
        if name == "@unknown":
            continue
        field = kind.fields_by_name[name]
        yield f"{kind.name}.{name}"
        for each in value if field.is_repeated else [value]:
            if field.message_type is not None:
                yield from _occurring(field.message_type, each)
            elif field.enum_type is not None:
                yield str(each)


def test_every_field_and_enum_value_of_the_schema_occurs_in_a_vector() -> None:
    schema: Any = pb.DESCRIPTOR
    messages = schema.message_types_by_name
    wanted = {
        f"{name}.{field.name}" for name, message in messages.items() for field in message.fields
    } - NEVER_WRITTEN
    wanted |= {
        value.name
        for enum in schema.enum_types_by_name.values()
        for value in enum.values
        if value.number and value.name not in NEVER_WRITTEN
    }
    for case in VECTORS.values():
        wanted -= set(_occurring(messages[case["message"]], case["fields"]))
    assert not wanted


def test_every_committed_file_belongs_to_a_case() -> None:
    for folder, cases in (("vectors", VECTORS), ("malformed", MALFORMED)):
        assert {path.stem for path in (FOLDER / folder).iterdir()} == set(cases)
