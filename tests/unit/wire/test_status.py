"""The three vocabularies of errors map onto each other without a gap."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.status import OK, StatusCode, StructuredStatus
from meshnet.wire import CODE_FROM_GRPC, CODE_TO_PROTO, GRPC_FROM_CODE
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.status import (
    ERROR_TRAILER,
    error_trailer,
    status_from_proto,
    status_from_trailer,
    status_to_proto,
)
from tests.support.frames import unhurried


def test_every_code_has_its_own_number_and_every_number_its_code() -> None:
    assert set(CODE_TO_PROTO) == set(StatusCode)
    assert sorted(CODE_TO_PROTO.values()) == sorted(pb.ErrorCode.values())
    for code, number in CODE_TO_PROTO.items():
        if code is not StatusCode.OK:
            assert pb.ErrorCode.Name(number) == f"ERROR_CODE_{code.name}"


def test_every_code_has_a_grpc_code_and_every_grpc_code_a_code() -> None:
    assert set(GRPC_FROM_CODE) == set(StatusCode)
    assert set(CODE_FROM_GRPC) == set(grpc.StatusCode)
    for code, translated in GRPC_FROM_CODE.items():
        assert (translated is grpc.StatusCode.OK) == (code is StatusCode.OK)
    for translated, code in CODE_FROM_GRPC.items():
        assert (translated is grpc.StatusCode.OK) == (code is StatusCode.OK)


@unhurried
@given(
    st.builds(
        StructuredStatus,
        st.sampled_from(StatusCode),
        st.booleans(),
        st.text(st.characters(codec="utf-8")),
        st.dictionaries(*[st.text(st.characters(codec="utf-8"))] * 2),
    )
)
def test_a_status_survives_the_wire(status: StructuredStatus) -> None:
    data = status_to_proto(status).SerializeToString()
    assert status_from_proto(pb.ShardError.FromString(data)) == status


def test_an_absent_error_is_ok() -> None:
    assert status_from_proto(pb.ShardError()) is OK


def test_a_code_of_a_newer_peer_is_an_internal_error() -> None:
    newer = pb.ShardError(retryable=True, message="m")
    newer.MergeFromString(b"\x08\xe7\x07")  # field 1, value 999
    status = status_from_proto(newer)
    assert status == StructuredStatus(StatusCode.INTERNAL, retryable=True, message="m")


def test_a_detail_given_twice_is_malformed() -> None:
    detail = pb.ErrorDetail(key="k", value="v")
    with pytest.raises(MalformedFrameError, match=r"error\.details"):
        status_from_proto(pb.ShardError(details=[detail, detail]))


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
def test_a_trailer_carries_a_status(code: StatusCode) -> None:
    status = StructuredStatus(code, True, "a text with \N{SNOWMAN}", {"field": "x"})
    others = (("content-type", "application/grpc"), ("other-bin", b"\xff"))
    assert status_from_trailer((*others, *error_trailer(status))) == status


def test_a_trailer_stays_below_the_limit_of_metadata() -> None:
    long = StructuredStatus(
        StatusCode.INTERNAL,
        message="\N{SNOWMAN}" * 10_000,
        details={"field": "x", "huge": "y" * 10_000, "small": "z"},
    )
    trailer = error_trailer(long)
    assert len(trailer[0][1]) < 5000
    status = status_from_trailer(trailer)
    assert status is not None
    assert status.message.startswith("\N{SNOWMAN}" * 600)
    assert status.message.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert status.details["field"] == "x"
    assert "huge" not in status.details


def test_without_our_trailer_there_is_no_status() -> None:
    assert status_from_trailer(()) is None
    assert status_from_trailer(((ERROR_TRAILER, b""),)) is None


def test_a_trailer_that_is_not_an_error_is_malformed() -> None:
    with pytest.raises(MalformedFrameError, match=ERROR_TRAILER):
        status_from_trailer(((ERROR_TRAILER, b"\xff\xff\xff"),))
