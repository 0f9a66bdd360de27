"""What an agent does about what it is told, and about what then happens to it."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given

from meshnet.tracker import agent
from meshnet.tracker.agent import Abandon, AgentState, Fetch, Shard, Start, Stop
from meshnet.tracker.messages import AssignmentReply, Phase, Serving

MODEL = "sha256:" + "a" * 64
ADDRESS, RECIPE = "10.0.0.1:7000", "sha256:recipe"


def layers(start: int, end: int, epoch: int = 1) -> AssignmentReply:
    return AssignmentReply(
        model=MODEL,
        name="m",
        start=start,
        end=end,
        total_layers=6,
        epoch=epoch,
        serving=Serving(),
    )


ONE, OTHER = layers(0, 3), layers(3, 6)


def serving(assignment: AssignmentReply) -> AgentState:
    """An agent whose worker serves an assignment."""
    state, _ = agent.told(AgentState(), assignment, 0.0)
    state, _ = agent.fetched(state, Shard.of(assignment), 0.0)
    return agent.started(state, Shard.of(assignment), ADDRESS, RECIPE)


def test_layers_are_fetched_and_then_served():
    state, actions = agent.told(AgentState(), ONE, 0.0)
    assert actions == (Fetch(ONE),)
    state = agent.progressed(state, Shard.of(ONE), 5, 9)
    (report,) = state.reports(answers=False)
    assert (report.phase, report.done_bytes, report.total_bytes) == (Phase.FETCHING, 5, 9)
    state, actions = agent.fetched(state, Shard.of(ONE), 1.0)
    assert actions == (Start(ONE),)
    assert [report.phase for report in state.reports(answers=False)] == [Phase.STARTING]
    state = agent.started(state, Shard.of(ONE), ADDRESS, RECIPE)
    (report,) = state.reports(answers=True)
    assert (report.phase, report.address, report.recipe) == (Phase.READY, ADDRESS, RECIPE)
    assert agent.told(state, ONE, 2.0) == (state, ())


def test_a_worker_that_does_not_answer_is_not_told_to_be_ready():
    assert [it.phase for it in serving(ONE).reports(answers=False)] == [Phase.STARTING]


def test_another_epoch_of_the_same_layers_restarts_nothing():
    state, actions = agent.told(serving(ONE), layers(0, 3, epoch=7), 1.0)
    assert actions == ()
    assert [report.epoch for report in state.reports(answers=True)] == [7]


def test_old_layers_serve_until_the_new_ones_are_there_and_their_sessions_have_ended():
    state, actions = agent.told(serving(ONE), OTHER, 0.0)
    assert actions == (Fetch(OTHER),)
    assert [report.leaving for report in state.reports(answers=True)] == [False, False]
    state, actions = agent.fetched(state, Shard.of(OTHER), 10.0)
    assert actions == ()
    assert state.reports(answers=True)[0].leaving
    assert agent.looked(state, open_sessions=2, now=11.0) == (state, ())
    state, actions = agent.looked(state, open_sessions=0, now=12.0)
    assert actions == (Stop(), Start(OTHER))
    assert [(it.start, it.phase) for it in state.reports(answers=True)] == [(3, Phase.STARTING)]


def test_sessions_that_do_not_end_are_not_waited_for_without_end():
    state, _ = agent.told(serving(ONE), None, 10.0)
    late = 10.0 + agent.GRACE_SECONDS
    assert agent.looked(state, 1, late - 0.1)[1] == ()
    assert agent.looked(state, 1, late) == (AgentState(), (Stop(),))


def test_layers_that_are_wanted_again_stay():
    state, _ = agent.told(serving(ONE), None, 0.0)
    state, actions = agent.told(state, ONE, 1.0)
    assert actions == ()
    assert agent.looked(state, 0, 99.0) == (state, ())


def test_a_fetch_that_is_not_wanted_any_more_is_abandoned():
    state, _ = agent.told(AgentState(), ONE, 0.0)
    state, actions = agent.told(state, OTHER, 1.0)
    assert actions == (Abandon(), Fetch(OTHER))
    # What the abandoned one still brings changes nothing.
    assert agent.fetched(state, Shard.of(ONE), 2.0) == (state, ())
    assert agent.failed(state, Shard.of(ONE), "late", 2.0) == state


def test_a_failure_is_told_and_tried_again_after_pauses_that_grow():
    state, now, pauses = agent.told(AgentState(), ONE, 0.0)[0], 0.0, []
    for _ in range(8):
        state = agent.failed(state, Shard.of(ONE), "no room", now)
        (report,) = state.reports(answers=False)
        assert (report.phase, report.problem) == (Phase.FAILED, "no room")
        began = now
        while agent.told(state, ONE, now)[1] == ():
            now += 0.5
        pauses.append(now - began)
        state, actions = agent.told(state, ONE, now)
        assert actions == (Fetch(ONE),)
    assert pauses == sorted(pauses)
    assert pauses[-1] == agent.LONGEST_PAUSE_SECONDS


def test_a_worker_that_never_starts_is_tried_after_pauses_that_grow_too():
    state, now, pauses = agent.told(AgentState(), ONE, 0.0)[0], 0.0, []
    for _ in range(4):
        state, _ = agent.fetched(state, Shard.of(ONE), now)
        state, _ = agent.told(state, ONE, now)  # a heartbeat while the worker starts
        state = agent.failed(state, Shard.of(ONE), "no GPU", now)
        assert state.coming is not None
        assert state.coming.retry_at is not None
        pauses.append(state.coming.retry_at - now)
        now = state.coming.retry_at
        state, actions = agent.told(state, ONE, now)
        assert actions == (Fetch(ONE),)
    assert pauses == [2.0, 4.0, 8.0, 16.0]
    state, _ = agent.fetched(state, Shard.of(ONE), now)
    state = agent.started(state, Shard.of(ONE), ADDRESS, RECIPE)
    state = agent.failed(state, Shard.of(ONE), "killed", now)
    assert state.coming is not None
    assert state.coming.retry_at == now + 2.0


def test_failures_of_other_layers_do_not_count():
    state = agent.failed(agent.told(serving(ONE), OTHER, 0.0)[0], Shard.of(OTHER), "no room", 0.0)
    assert state.failures == 1
    state, _ = agent.told(state, ONE, 1.0)
    assert state == serving(ONE)


def test_a_worker_that_died_for_good_is_told_as_failed():
    state = agent.failed(serving(ONE), Shard.of(ONE), "killed", 5.0)
    assert [it.phase for it in state.reports(answers=True)] == [Phase.FAILED]
    assert agent.told(state, ONE, 5.0)[1] == ()


@dataclass
class Machine:
    """Does what the agent says, and sees that it makes sense."""

    state: AgentState = field(default_factory=AgentState)
    fetching: AssignmentReply | None = None
    cut: set[Shard] = field(default_factory=set)
    worker: AssignmentReply | None = None
    now: float = 0.0

    def do(self, outcome: agent.Outcome) -> None:
        self.state, actions = outcome
        for action in actions:
            match action:
                case Fetch():
                    assert self.fetching is None
                    self.fetching = action.assignment
                case Abandon():
                    assert self.fetching is not None
                    self.fetching = None
                case Stop():
                    assert self.worker is not None
                    self.worker = None
                case Start():
                    assert self.worker is None
                    assert Shard.of(action.assignment) in self.cut
                    self.worker = action.assignment

    def step(self, what: str, which: AssignmentReply) -> None:
        self.now += 1.0
        if what == "tell":
            self.do(agent.told(self.state, which, self.now))
        elif what == "dismiss":
            self.do(agent.told(self.state, None, self.now))
        elif what in ("look", "look busy"):
            self.do(agent.looked(self.state, int(what != "look"), self.now))
        elif what == "started" and self.worker is not None:
            self.state = agent.started(self.state, Shard.of(self.worker), ADDRESS, RECIPE)
        elif what == "died" and self.worker is not None:
            shard, self.worker = Shard.of(self.worker), None
            self.state = agent.failed(self.state, shard, "died", self.now)
        elif what in ("fetched", "fetch failed") and self.fetching is not None:
            shard, self.fetching = Shard.of(self.fetching), None
            if what == "fetched":
                self.cut.add(shard)
                self.do(agent.fetched(self.state, shard, self.now))
            else:
                self.state = agent.failed(self.state, shard, "failed", self.now)


STEPS = (
    *("tell", "dismiss", "look", "look busy"),
    *("started", "died", "fetched", "fetch failed"),
)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([ONE, OTHER, layers(0, 3, 2)]))))
def test_whatever_happens_the_agent_ends_at_what_it_is_told(steps):
    machine = Machine()
    for what, which in steps:
        machine.step(what, which)
        held = machine.state.held
        assert (held is None) == (machine.worker is None)
        assert len(machine.state.reports(answers=True)) <= 2
    for _ in range(2 * int(agent.LONGEST_PAUSE_SECONDS)):
        for what in ("tell", "fetched", "started", "look"):
            machine.step(what, ONE)
    assert machine.worker is not None
    assert Shard.of(machine.worker) == Shard.of(ONE)
    assert [it.phase for it in machine.state.reports(answers=True)] == [Phase.READY]
    for what in ("dismiss", "look"):
        machine.step(what, ONE)
    assert machine.state == AgentState()
