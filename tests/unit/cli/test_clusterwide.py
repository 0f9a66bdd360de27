"""Which machine a command means."""

import pytest

from meshnet.cli.clusterwide import machine_id
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
