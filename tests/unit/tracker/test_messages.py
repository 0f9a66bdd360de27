"""What the tracker takes in from machines, and what it refuses."""

import pytest
from pydantic import ValidationError

from meshnet.tracker import messages as msg
from tests.support.trackers import DIGEST, MACHINE


def work(address: str, phase: msg.Phase = msg.Phase.READY, **more: object) -> msg.WorkReport:
    fields: dict[str, object] = {
        "model": DIGEST,
        "start": 0,
        "end": 6,
        "epoch": 1,
        "phase": phase,
        "address": address,
        "recipe": "sha256:recipe",
    }
    return msg.WorkReport.model_validate(fields | more)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:7000", "[fe80::1]:7000", "[::1]:65535", "host.example:1"]
)
def test_addresses_that_others_can_connect_to_are_taken(address):
    assert work(address).address == address


@pytest.mark.parametrize(
    "address", ["10.0.0.1:0", "10.0.0.1:65536", "::1:7000", "[::1:7000", "a:b:7000", "x", "a b:1"]
)
def test_addresses_that_are_none_are_refused_by_their_field(address):
    with pytest.raises(ValidationError, match="address"):
        work(address)


def test_the_worker_is_where_the_work_that_is_ready_is():
    def at(*works: msg.WorkReport) -> str | None:
        return msg.HeartbeatRequest(incarnation=1, machine=MACHINE, work=works).worker_address

    starting = work("10.0.0.1:1", msg.Phase.STARTING)
    leaving, ready = work("10.0.0.1:2", leaving=True), work("10.0.0.1:3")
    assert at(starting) is None
    assert at(starting, ready) == "10.0.0.1:3"
    assert at(leaving, ready) == "10.0.0.1:3"
    assert at(leaving, starting) == "10.0.0.1:2"
