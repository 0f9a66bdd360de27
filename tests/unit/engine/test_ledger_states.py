"""The ledger against a naive model: any order of steps, forks, cuts, cancels, releases, epochs."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.status import StatusCode
from meshnet.engine.base import DecodeRequest, StepRequest, StepResult, TokenOutput
from meshnet.engine.ledger import REMEMBERED_STEPS, SessionLedger

CONTEXT = 12
KEYS = [SessionKey(RouteSessionId(name), epoch) for name in "ab" for epoch in (0, 1)]
keys = st.sampled_from(KEYS)
rows = st.integers(1, 4)
failures = st.sampled_from([False, False, False, True])
rarely = st.sampled_from([False, False, False, False, True])
Content = list[int]


@dataclass
class Session:
    """What a session should hold: for each position the number of the step that wrote it."""

    content: Content
    steps: dict[int, TokenOutput] = field(default_factory=dict)


class LedgerAgainstModel(RuleBasedStateMachine):
    """The machine plays the engine too: slots hold contents, changed only as the ledger says."""

    @initialize(places=st.integers(1, 3), rollback=st.booleans())
    def start(self, places: int, rollback: bool) -> None:
        self.places, self.rollback = places, rollback
        self.ledger = SessionLedger(places, CONTEXT, rollback=rollback)
        self.slots: dict[int, Content] = {number: [] for number in range(places)}
        self.model: dict[SessionKey, Session] = {}
        self.newest: dict[str, int] = {}
        self.cancelled: set[SessionKey] = set()
        self.numbers: dict[SessionKey, int] = {}
        self.counted = self.written = self.repeats = self.misses = 0

    def request(self, key: SessionKey, expectation: CacheExpectation, count: int) -> StepRequest:
        self.numbers[key] = self.numbers.get(key, -1) + 1
        position = expectation.expected_past_len
        return DecodeRequest(key, position, expectation, self.numbers[key], (1,) * count)

    def due(self, request: StepRequest) -> StatusCode:
        """What the naive model says of a new step."""
        key, wanted = request.key, request.expectation
        if key.route_epoch < self.newest.get(key.session_id, 0):
            return StatusCode.STALE_EPOCH
        if key in self.cancelled:
            return StatusCode.CANCELLED
        own = self.model.get(key)
        new = wanted.mode in (CacheMode.FRESH, CacheMode.FORK)
        source = self.model.get(wanted.source) if wanted.source else own
        held = len(source.content) if source else 0
        exact = wanted.mode is CacheMode.EXACT
        if (
            new is (own is not None)
            or (wanted.mode is not CacheMode.FRESH and source is None)
            or held < request.position
            or (exact and held != request.position)
            or (held > request.position and not self.rollback)
            or (wanted.mode is CacheMode.FRESH and request.position)
        ):
            return StatusCode.CACHE_MISS
        if request.position + request.rows > CONTEXT:
            return StatusCode.CONTEXT_LENGTH_EXCEEDED
        ended = [held for held in self.model if held.session_id == key.session_id]
        if own is None and len(self.model) - len(ended) >= self.places:
            return StatusCode.RESOURCE_EXHAUSTED
        return StatusCode.OK

    def step(self, request: StepRequest, *, fails: bool = False) -> None:
        due = self.due(request)
        try:
            admission = self.ledger.admit(request)
        except MeshnetError as error:
            assert error.code is due
            result = self.ledger.refused(request, error)
            self.misses += due is StatusCode.CACHE_MISS
            own = self.model.get(request.key)
            assert result.cache_result is not None
            assert result.cache_result.past_len == (len(own.content) if own else 0)
            return
        assert due is StatusCode.OK
        assert not isinstance(admission, StepResult)
        self.play(request, admission, fails=fails)

    def play(self, request: StepRequest, admission, *, fails: bool) -> None:
        number = admission.slot.number
        for cleared in admission.cleared:
            self.slots[cleared] = []
        if admission.copied is not None:
            assert self.slots[number] == []
            self.slots[number] = list(self.slots[admission.copied])
        if admission.truncate:
            assert self.rollback
            del self.slots[number][request.position :]
        assert len(self.slots[number]) == request.position
        self.open_in_model(request)
        self.counted += 1
        if fails:
            del self.slots[number][self.ledger.roll_back(request, admission) :]
            if admission.opened or not self.rollback:
                del self.model[request.key]
            return
        written = [self.counted] * request.rows
        self.slots[number] += written
        session = self.model[request.key]
        session.content += written
        made = TokenOutput(self.counted)
        session.steps[request.idempotency_step] = made
        self.written += request.rows
        result = self.ledger.commit(request, made, 1)
        assert result.cache_result is not None
        assert result.cache_result.past_len == len(session.content)

    def open_in_model(self, request: StepRequest) -> None:
        key, source = request.key, request.expectation.source
        if key in self.model:
            del self.model[key].content[request.position :]
            return
        content = self.model[source].content[: request.position] if source else []
        for held in [held for held in self.model if held.session_id == key.session_id]:
            del self.model[held]
        self.model[key] = Session(content)
        self.newest[key.session_id] = key.route_epoch

    @rule(key=keys, count=rows, fails=failures)
    def fresh(self, key: SessionKey, count: int, fails: bool) -> None:
        self.step(self.request(key, CacheExpectation(CacheMode.FRESH), count), fails=fails)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=rows, off=st.sampled_from([0] * 8 + [1, -1]), fails=failures)
    def exact(self, data: st.DataObject, count: int, off: int, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.model, key=str)))
        wanted = CacheExpectation(CacheMode.EXACT, max(0, len(self.model[key].content) + off))
        self.step(self.request(key, wanted, count), fails=fails)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=rows, fails=failures)
    def truncate(self, data: st.DataObject, count: int, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.model, key=str)))
        position = data.draw(st.integers(0, len(self.model[key].content)))
        wanted = CacheExpectation(CacheMode.TRUNCATE, position)
        self.step(self.request(key, wanted, count), fails=fails)

    @precondition(lambda self: self.model and self.unopened())
    @rule(data=st.data(), count=rows, fails=failures)
    def fork(self, data: st.DataObject, count: int, fails: bool) -> None:
        source = data.draw(st.sampled_from(sorted(self.model, key=str)))
        key = data.draw(st.sampled_from(self.unopened()))
        position = data.draw(st.integers(1, max(1, len(self.model[source].content))))
        wanted = CacheExpectation(CacheMode.FORK, position, source)
        self.step(self.request(key, wanted, count), fails=fails)

    def unopened(self) -> list[SessionKey]:
        """Sessions that may be opened, if there is room."""
        return [
            key
            for key in KEYS
            if key not in self.model
            and key not in self.cancelled
            and key.route_epoch >= self.newest.get(key.session_id, 0)
        ]

    @rule(
        key=keys,
        wanted=st.one_of(
            st.builds(
                CacheExpectation,
                st.sampled_from([CacheMode.EXACT, CacheMode.TRUNCATE]),
                st.integers(0, CONTEXT),
            ),
            st.builds(CacheExpectation, st.just(CacheMode.FORK), st.integers(1, CONTEXT), keys),
        ),
        really=rarely,
    )
    def anything(self, key: SessionKey, wanted: CacheExpectation, really: bool) -> None:
        if really and wanted.source != key:
            self.step(self.request(key, wanted, 1))

    @precondition(lambda self: any(session.steps for session in self.model.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([k for k, s in self.model.items() if s.steps]))
        session = self.model[key]
        number = data.draw(st.sampled_from(sorted(session.steps)[-REMEMBERED_STEPS:]))
        # What else the repeat says doesn't matter: it is known by its number.
        again = DecodeRequest(key, 0, CacheExpectation(CacheMode.EXACT, 0), number, (1,))
        result = self.ledger.admit(again)
        assert isinstance(result, StepResult)
        assert result.duplicate
        assert result.output == session.steps[number]
        self.repeats += 1

    @rule(key=keys, really=rarely)
    def cancel(self, key: SessionKey, really: bool) -> None:
        if not really:
            return
        self.leave(key, self.ledger.cancel(key))
        self.cancelled.add(key)

    @rule(key=keys)
    def release(self, key: SessionKey) -> None:
        self.leave(key, self.ledger.release(key))
        self.cancelled.discard(key)

    @rule(really=rarely)
    def lose_all(self, really: bool) -> None:
        if not really:
            return
        self.ledger.release_all()
        self.model.clear()
        self.slots = {number: [] for number in range(self.places)}

    def leave(self, key: SessionKey, slot) -> None:
        assert (slot is not None) is (key in self.model)
        if slot is not None:
            self.slots[slot.number] = []
            del self.model[key]

    @invariant()
    def the_ledger_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "model"):
            return
        for key, session in self.model.items():
            assert self.ledger.past_len(key) == len(session.content)
        metrics = self.ledger.metrics()
        assert metrics.open_sessions == self.ledger.open_sessions == len(self.model)
        assert metrics.positions == sum(len(s.content) for s in self.model.values())
        assert (metrics.rows, metrics.duplicates) == (self.written, self.repeats)
        assert metrics.cache_misses == self.misses
        held = sorted(session.content for session in self.model.values() if session.content)
        assert sorted(content for content in self.slots.values() if content) == held


LedgerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLedgerAgainstModel = LedgerAgainstModel.TestCase
