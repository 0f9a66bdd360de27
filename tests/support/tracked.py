"""A tracker with a clock and a store of the test's own, and machines that do as they are told."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.ids import NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.clocks import Clocks
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import Authority, new_key, public_key_of
from meshnet.transport.jointoken import join_proof
from tests.support.trackers import MACHINE, OFFER, MemoryStore

AUTHORITY = Authority.create("test", now=0.0)


@dataclass
class Cluster:
    """A tracker, its time, and machines that do as they are told at once."""

    store: MemoryStore
    now: float = 1000.0
    ahead: float = 0.0
    """By how much the wall clock is ahead of the steady one."""

    def __post_init__(self) -> None:
        self.service = self._started()
        self.service.found("test")
        self.service.offer(OFFER)

    def restart(self) -> None:
        """As after a SIGKILL: all that wasn't written down is gone."""
        self.service = self._started()

    def _started(self) -> TrackerService:
        clocks = Clocks(lambda: self.now, lambda: self.now + self.ahead)
        return TrackerService(self.store, AUTHORITY, clocks)

    def join(self, name: str, secret: str) -> NodeId:
        return NodeId(self.service.join(joining(new_key(), name, secret)).node_id)

    def wait(self, seconds: float, *nodes: NodeId) -> None:
        """Let time pass in which the tracker listens, and these machines say what they hold."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            for node in nodes:
                self.beat(node, self.beat(node).assignment)
            self.service.tick()

    def beat(
        self, node: NodeId, held: msg.AssignmentReply | None = None, incarnation: int = 1
    ) -> msg.HeartbeatReply:
        work = () if held is None else (ready(held, node),)
        return self.service.heartbeat(
            node, msg.HeartbeatRequest(incarnation=incarnation, machine=MACHINE, work=work)
        )

    def settle(self, *nodes: NodeId) -> None:
        """Let some seconds pass in which these machines do what they are told."""
        for _ in range(3):
            self.now += 1.0
            for node in nodes:
                self.beat(node, self.beat(node).assignment)
            self.service.tick()


def joining(key: bytes, name: str, secret: str) -> msg.JoinRequest:
    public = public_key_of(key).decode()
    proof = join_proof(key, secret, name)
    return msg.JoinRequest(secret=secret, public_key=public, name=name, proof=proof)


def ready(held: msg.AssignmentReply, node: NodeId) -> msg.WorkReport:
    return msg.WorkReport(
        model=held.model,
        start=held.start,
        end=held.end,
        epoch=held.epoch,
        phase=msg.Phase.READY,
        address=f"{node}:7000",
        recipe="sha256:recipe",
    )


def spans(status: msg.StatusReply) -> list[tuple[int, int]]:
    return [(it.told.start, it.told.end) for it in status.machines if it.told is not None]
