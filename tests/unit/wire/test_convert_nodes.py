"""What nodes say about themselves, to the wire and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from meshnet.domain.errors import InputError, MalformedFrameError
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.domain.tensors import DType
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert_nodes import (
    capability_from_proto,
    capability_to_proto,
    health_from_proto,
    health_to_proto,
)
from tests.support.frames import CAPABILITY


@pytest.mark.parametrize(
    "capability", [CAPABILITY, dataclasses.replace(CAPABILITY, next_address=None)]
)
def test_a_capability_survives_the_wire(capability: Capability) -> None:
    data = capability_to_proto(capability).SerializeToString()
    assert capability_from_proto(pb.Capability.FromString(data)) == capability


def test_a_capability_says_which_packings_are_read() -> None:
    assert list(capability_to_proto(CAPABILITY).compressions) == [
        pb.COMPRESSION_NONE,
        pb.COMPRESSION_ZSTD,
    ]


def test_a_capability_without_element_types_means_float32() -> None:
    message = capability_to_proto(CAPABILITY)
    del message.dtypes[:]
    assert capability_from_proto(message).dtypes == (DType.FLOAT32,)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda message: message.ClearField("layers"), "layers"),
        (lambda message: message.ClearField("fingerprint"), "fingerprint"),
        (lambda message: message.ClearField("node_id"), "node_id"),
        (lambda message: message.ClearField("context_length"), "context_length"),
        (lambda message: message.dtypes.append(99), "dtypes"),
        (lambda message: setattr(message.schema_version, "number", 2), "schema_version"),
    ],
)
def test_a_capability_that_breaks_the_contract_is_refused(
    change: Callable[[pb.Capability], None], field: str
) -> None:
    message = capability_to_proto(CAPABILITY)
    change(message)
    with pytest.raises(MalformedFrameError) as caught:
        capability_from_proto(message)
    assert caught.value.details["field"] == field


def test_layers_past_the_model_are_refused() -> None:
    message = capability_to_proto(CAPABILITY)
    message.total_layers = 19
    with pytest.raises(InputError, match="19 layers"):
        capability_from_proto(message)


@pytest.mark.parametrize(
    "report",
    [HealthReport(state) for state in LifecycleState]
    + [
        HealthReport(LifecycleState.READY, StructuredStatus(StatusCode.OK, message="warm"), 3, 9),
        HealthReport(
            LifecycleState.FAILED,
            StructuredStatus(StatusCode.ENGINE_FAILED, False, "no memory", {"bytes": "1"}),
        ),
    ],
)
def test_a_health_report_survives_the_wire(report: HealthReport) -> None:
    data = health_to_proto(report).SerializeToString()
    assert health_from_proto(pb.HealthResponse.FromString(data)) == report


def test_a_health_report_without_a_state_is_malformed() -> None:
    with pytest.raises(MalformedFrameError, match="state"):
        health_from_proto(pb.HealthResponse())
