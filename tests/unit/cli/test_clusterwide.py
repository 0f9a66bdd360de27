"""Which machine a command means."""

import pytest

from meshnet.cli.clusterwide import fetched, machine_id
from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker import messages as msg


def machine(node_id: str, name: str) -> msg.MachineStatus:
    return msg.MachineStatus(
        node_id=node_id,
        name=name,
        state=msg.MachineState.SPARE,
        drained=False,
        silent_seconds=None,
    )


MACHINES = (machine("aa11", "desk"), machine("aa22", "pi"), machine("bb33", "pi"))


@pytest.mark.parametrize(
    ("text", "node_id"), [("desk", "aa11"), ("bb33", "bb33"), ("bb", "bb33"), ("aa1", "aa11")]
)
def test_a_name_an_id_or_the_beginning_of_one(text, node_id):
    assert machine_id(MACHINES, text) == node_id


@pytest.mark.parametrize(
    ("text", "why"), [("pi", "several"), ("aa", "several"), ("x", "none of the machines")]
)
def test_what_means_no_single_machine_is_refused_with_all_there_are(text, why):
    with pytest.raises(InvalidArgumentError, match=rf"{why}.*desk \(aa11\)"):
        machine_id(MACHINES, text)


@pytest.mark.parametrize(
    ("first", "peers", "told"),
    [
        (0, 0, ""),
        (2048, 0, "2.0 KiB"),
        (1024, 3 << 20, "3.0 MiB, 3.0 MiB of it from peers"),
    ],
)
def test_where_a_machines_layers_came_from(first, peers, told):
    assert fetched(msg.WeightsReport(first_bytes=first, peer_bytes=peers)) == told


def test_nothing_is_said_of_a_machine_that_was_not_heard():
    assert fetched(None) == ""
