"""What a worker's end is called."""

import signal

import pytest

from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.node.supervisor import WorkerDeath, describe_exit


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (0, "ended with status 0"),
        (134, "ended with status 134"),
        (-signal.SIGKILL, "was killed (SIGKILL)"),
        (-signal.SIGSEGV, "was killed (SIGSEGV)"),
        (-signal.SIGABRT, "was aborted (SIGABRT): an assertion in libllama failed"),
        (-99, "was killed (signal 99)"),
    ],
)
def test_exits_have_words(returncode, text):
    assert describe_exit(returncode) == text


def test_a_death_names_the_node_its_layers_and_its_last_words():
    death = WorkerDeath(NodeId("node-2"), LayerRange(2, 4), -signal.SIGKILL, ("first", "last"))
    assert death.describe() == "node node-2 (layers [2, 4)) was killed (SIGKILL): last"
    error = death.error()
    assert error.details == {"node": "node-2", "layers": "[2, 4)"}
    assert error.message == death.describe()


def test_a_death_without_words():
    death = WorkerDeath(NodeId("n"), LayerRange(0, 1), 3, ())
    assert death.describe() == "node n (layers [0, 1)) ended with status 3"
