"""A cluster as the dashboard shows it."""

import pytest

from meshnet.domain.layers import LayerRange
from meshnet.gateway.clustermachines import labels_of, view_of
from meshnet.gateway.machines import NodeState
from meshnet.tracker import messages as msg
from tests.support.trackers import DIGEST, MACHINE, OFFER


def work(phase: msg.Phase, start: int = 0, end: int = 3, **more: object) -> msg.WorkReport:
    fields = {"model": DIGEST, "start": start, "end": end, "epoch": 1, "phase": phase}
    if phase is msg.Phase.READY:
        fields |= {"address": "10.0.0.1:7000", "recipe": "r"}
    return msg.WorkReport.model_validate(fields | more)


def machine(name: str, state: msg.MachineState, **more: object) -> msg.MachineStatus:
    fields = {
        "node_id": f"id-{name}",
        "name": name,
        "state": state,
        "drained": False,
        "silent_seconds": 1.0,
        "machine": MACHINE,
    }
    return msg.MachineStatus.model_validate(fields | more)


def shown(*machines: msg.MachineStatus):
    status = msg.StatusReply(cluster="c", machines=machines, models=(), tokens=())
    return {node.name: node for node in view_of(status, OFFER).nodes}


def test_each_state_has_its_own_look():
    nodes = shown(
        machine("ready", msg.MachineState.READY, work=(work(msg.Phase.READY),)),
        machine("drained", msg.MachineState.READY, work=(work(msg.Phase.READY),), drained=True),
        machine(
            "fetching",
            msg.MachineState.FETCHING,
            work=(work(msg.Phase.FETCHING, done_bytes=1, total_bytes=4),),
        ),
        machine("failed", msg.MachineState.FAILED, work=(work(msg.Phase.FAILED, problem="full"),)),
        machine("spare", msg.MachineState.SPARE),
        machine("down", msg.MachineState.DOWN, work=(work(msg.Phase.READY),)),
    )
    assert {name: node.state for name, node in nodes.items()} == {
        "ready": NodeState.READY,
        "drained": NodeState.DRAINING,
        "fetching": NodeState.LOADING,
        "failed": NodeState.FAILED,
        "spare": NodeState.SPARE,
        "down": NodeState.DOWN,
    }
    assert nodes["ready"].layers == LayerRange(0, 3)
    assert nodes["fetching"].progress == 0.25
    assert nodes["failed"].reason == "full"
    assert (nodes["spare"].layers, nodes["down"].address) == (None, "")


def test_what_a_machine_says_of_layers_that_do_not_exist_is_not_shown():
    (node,) = shown(
        machine("odd", msg.MachineState.READY, work=(work(msg.Phase.READY, 5, 5000),))
    ).values()
    assert node.layers is None


def test_a_machine_that_holds_another_model_says_so_and_shows_none_of_its_layers():
    other = "sha256:" + "e" * 64
    models = [
        msg.ModelStatus(digest=digest, name=name, total_layers=6, epoch=1, ready=name == "m")
        for digest, name in ((DIGEST, "m"), (other, "big"))
    ]
    own = machine("own", msg.MachineState.READY, told=msg.Span(start=0, end=6), told_model=DIGEST)
    # More layers than the model that is shown has.
    foreign = machine(
        "foreign", msg.MachineState.READY, told=msg.Span(start=9, end=80), told_model=other
    )
    status = msg.StatusReply(cluster="c", machines=(own, foreign), models=tuple(models), tokens=())
    view = view_of(status, OFFER)
    assert view.note == "other models here: big (not ready)"
    assert [(it.name, it.layers, it.reason) for it in view.nodes] == [
        ("own", LayerRange(0, 6), ""),
        ("foreign", None, "layers 9:80 of big"),
    ]


def test_machines_with_one_name_are_told_apart():
    status = [machine("a", msg.MachineState.SPARE), machine("b", msg.MachineState.SPARE)]
    status.append(status[0].model_copy(update={"node_id": "id-2"}))
    assert labels_of(status) == {"id-a": "a id-a", "id-b": "b", "id-2": "a id-2"}


@pytest.mark.parametrize("missing", ["", "no node is ready with layers [0, 6)"])
def test_the_note_says_what_is_missing(missing):
    model = msg.ModelStatus(
        digest=DIGEST, name="m", total_layers=6, epoch=1, ready=not missing, problem=missing
    )
    status = msg.StatusReply(cluster="c", machines=(), models=(model,), tokens=())
    assert view_of(status, OFFER).note == missing
