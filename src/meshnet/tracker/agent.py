"""What a machine does about the layers it is told to hold. Pure: no clock, no process, no network.

A shell feeds in what happened and does what comes out::

    told(assignment) ──> Fetch ──fetched──> Start ──started──> ready
                           │                  │
                           └──── failed ──────┴──> waits, then Fetch again

The layers that a machine serves stay in service while those of another range are fetched, and then
until their sessions have ended or :data:`GRACE_SECONDS` are over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshnet.tracker.messages import AssignmentReply, Phase, Serving, WorkReport

GRACE_SECONDS = 15.0
"""How long the sessions of a shard that isn't wanted any more may take to end."""
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
_KEPT_PROBLEM = 1000


@dataclass(frozen=True, slots=True)
class Shard:
    """What a worker is started for: equal ones need no restart, whatever their epochs."""

    model: str
    start: int
    end: int
    total_layers: int
    serving: Serving

    @staticmethod
    def of(assignment: AssignmentReply) -> Shard:
        """The shard that an assignment is about."""
        return Shard(
            assignment.model,
            assignment.start,
            assignment.end,
            assignment.total_layers,
            assignment.serving,
        )


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get the bytes of the range, and cut its slice."""

    assignment: AssignmentReply


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker over the slice that was fetched."""

    assignment: AssignmentReply


@dataclass(frozen=True, slots=True)
class Abandon:
    """End the fetch that goes on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker, or its start."""


Action = Fetch | Start | Abandon | Stop


@dataclass(frozen=True, slots=True)
class Coming:
    """The shard that is prepared, or that failed and waits to be tried again."""

    assignment: AssignmentReply
    fetched: bool = False
    done_bytes: int = 0
    total_bytes: int = 0
    problem: str = ""
    retry_at: float | None = None
    """When it failed: not before this is it tried again."""

    def report(self) -> WorkReport:
        """What the tracker is told of it."""
        failed = self.retry_at is not None
        phase = Phase.FAILED if failed else Phase.FETCHING
        return _report(
            self.assignment,
            phase,
            done_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            problem=self.problem,
        )


@dataclass(frozen=True, slots=True)
class Held:
    """The shard that a worker was started for."""

    assignment: AssignmentReply
    address: str | None = None
    """Where it serves; None while it starts."""
    recipe: str | None = None
    leave_by: float | None = None
    """Once it isn't wanted any more: when it ends, with or without sessions."""

    def report(self, *, answers: bool) -> WorkReport:
        """What the tracker is told of it; a worker that doesn't answer isn't ready."""
        if self.address is None or not answers:
            return _report(self.assignment, Phase.STARTING)
        return _report(
            self.assignment,
            Phase.READY,
            address=self.address,
            recipe=self.recipe,
            leaving=self.leave_by is not None,
        )


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the machine serves, what it prepares, and how often in a row that failed."""

    held: Held | None = None
    coming: Coming | None = None
    failures: int = 0

    @property
    def shards(self) -> frozenset[Shard]:
        """Those that it serves or prepares."""
        parts = (self.held, self.coming)
        return frozenset(Shard.of(part.assignment) for part in parts if part is not None)

    def reports(self, *, answers: bool) -> tuple[WorkReport, ...]:
        """The work that a heartbeat tells of; ``answers``: whether the worker does."""
        held = () if self.held is None else (self.held.report(answers=answers),)
        return held if self.coming is None else (*held, self.coming.report())


Outcome = tuple[AgentState, tuple[Action, ...]]


def told(state: AgentState, assignment: AssignmentReply | None, now: float) -> Outcome:
    """The tracker wants this; None: nothing."""
    held, coming = state.held, state.coming
    if assignment is None:
        if held is not None:
            held = _leaving(held, now)
        return replace(state, held=held, coming=None, failures=0), _abandoned(coming)
    wanted = Shard.of(assignment)
    if held is not None and Shard.of(held.assignment) == wanted:
        # While it only starts, it may fail again as it did before.
        goes_on = held.address is None and coming is None
        held = replace(held, assignment=assignment, leave_by=None)
        failures = state.failures if goes_on else 0
        return AgentState(held, None, failures), _abandoned(coming)
    if coming is not None and Shard.of(coming.assignment) == wanted:
        coming = replace(coming, assignment=assignment)
        if coming.retry_at is None or now < coming.retry_at:
            return replace(state, coming=coming), ()
        return replace(state, coming=Coming(assignment)), (Fetch(assignment),)
    state = replace(state, coming=Coming(assignment), failures=0)
    return state, (*_abandoned(coming), Fetch(assignment))


def progressed(state: AgentState, shard: Shard, done: int, total: int) -> AgentState:
    """So many of the range's bytes are here."""
    coming = _same(state.coming, shard)
    if coming is None or coming.fetched:
        return state
    return replace(state, coming=replace(coming, done_bytes=done, total_bytes=total))


def fetched(state: AgentState, shard: Shard, now: float) -> Outcome:
    """The slice is on disk; what is served ends first, since both may not fit into memory."""
    coming = _same(state.coming, shard)
    if coming is None:
        return state, ()
    coming = replace(coming, fetched=True)
    if state.held is not None:
        return replace(state, held=_leaving(state.held, now), coming=coming), ()
    return _begin(replace(state, coming=coming))


def started(state: AgentState, shard: Shard, address: str, recipe: str) -> AgentState:
    """The worker serves at ``address``."""
    held = state.held
    if held is None or Shard.of(held.assignment) != shard:
        return state
    return replace(state, held=replace(held, address=address, recipe=recipe), failures=0)


def failed(state: AgentState, shard: Shard, problem: str, now: float) -> AgentState:
    """The fetch or the start failed, or the worker died too often; it is tried again later."""
    held, coming = state.held, _same(state.coming, shard)
    if coming is not None:
        assignment = coming.assignment
    elif held is not None and Shard.of(held.assignment) == shard:
        assignment, held = held.assignment, None
        if state.coming is not None:
            return replace(state, held=None)
    else:
        return state
    pause = min(FIRST_PAUSE_SECONDS * 2**state.failures, LONGEST_PAUSE_SECONDS)
    waiting = Coming(assignment, problem=problem[:_KEPT_PROBLEM], retry_at=now + pause)
    return AgentState(held, waiting, min(state.failures + 1, 16))


def looked(state: AgentState, open_sessions: int, now: float) -> Outcome:
    """Time has passed, and the worker has so many sessions: one that is to leave may go now."""
    held = state.held
    if held is not None:
        if held.leave_by is None or (open_sessions and now < held.leave_by):
            return state, ()
        state, stop = replace(state, held=None), (Stop(),)
        state, start = _begin(state)
        return state, (*stop, *start)
    return _begin(state)


def _begin(state: AgentState) -> Outcome:
    coming = state.coming
    if coming is None or not coming.fetched:
        return state, ()
    held = Held(coming.assignment)
    return replace(state, held=held, coming=None), (Start(coming.assignment),)


def _leaving(held: Held, now: float) -> Held:
    return held if held.leave_by is not None else replace(held, leave_by=now + GRACE_SECONDS)


def _abandoned(coming: Coming | None) -> tuple[Action, ...]:
    goes_on = coming is not None and not coming.fetched and coming.retry_at is None
    return (Abandon(),) if goes_on else ()


def _same(coming: Coming | None, shard: Shard) -> Coming | None:
    return coming if coming is not None and Shard.of(coming.assignment) == shard else None


def _report(assignment: AssignmentReply, phase: Phase, **more: object) -> WorkReport:
    fields: dict[str, object] = {
        "model": assignment.model,
        "start": assignment.start,
        "end": assignment.end,
        "epoch": assignment.epoch,
        "phase": phase,
    }
    return WorkReport.model_validate(fields | more)
