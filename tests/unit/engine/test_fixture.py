"""The fixture engine shows mistakes in its tokens, and goes wrong exactly when it is told to."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.domain.status import StatusCode
from meshnet.domain.tensors import BoundaryBundle
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    LoadRequest,
    Output,
    PrefillRequest,
    StepRequest,
    StepResult,
)
from meshnet.engine.fixture import (
    HANG_SECONDS,
    Fault,
    FaultKind,
    FaultSchedule,
    FixtureEngine,
    Row,
    _Cache,
)
from meshnet.engine.ledger import Admission

RECIPE = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
KEY = SessionKey(RouteSessionId("a"), 0)
LAYERS = 4
TOKENS = 6

prompts = st.lists(st.integers(0, 255), min_size=2, max_size=6).map(tuple)


def loaded(start: int, end: int, engine: FixtureEngine | None = None) -> FixtureEngine:
    made = engine or FixtureEngine()
    made.load(LoadRequest(None, start, end, LAYERS, RECIPE, EngineLimits(64, 2)))
    return made


def chain() -> list[FixtureEngine]:
    return [loaded(layer, layer + 1) for layer in range(LAYERS)]


def through(
    engines: Sequence[FixtureEngine],
    tokens: Sequence[int],
    position: int,
    mode: CacheMode,
    number: int,
) -> StepResult:
    """One step of the session through the chain."""
    kind = PrefillRequest if mode is CacheMode.FRESH else DecodeRequest
    request = kind(KEY, position, CacheExpectation(mode, position), number, tuple(tokens))
    for engine in engines[:-1]:
        (result,) = engine.execute([request])
        request = replace(request, token_ids=(), input=result.boundary())
    return engines[-1].execute([request])[0]


def generate(engines: Sequence[FixtureEngine], prompt: Sequence[int]) -> list[int]:
    """The first tokens that the chain answers to a prompt."""
    result = through(engines, prompt, 0, CacheMode.FRESH, 0)
    made = [result.token().token_id]
    while len(made) < TOKENS:
        position = len(prompt) + len(made) - 1
        result = through(engines, made[-1:], position, CacheMode.EXACT, len(made))
        made.append(result.token().token_id)
    return made


class OnePositionLate(FixtureEngine):
    def _compute(self, rows: list[Row], request: StepRequest, cache: _Cache) -> Output:
        late = CacheExpectation(CacheMode.EXACT, request.position + 1)
        moved = replace(request, position=request.position + 1, expectation=late)
        return super()._compute(rows, moved, cache)


class KeepsStalePositions(FixtureEngine):
    """Doesn't cut its cache back."""

    def _prepared(self, admission: Admission, position: int) -> _Cache:
        return super()._prepared(replace(admission, truncate=False), position)


@settings(max_examples=25)
@given(prompts)
def test_shards_in_another_order_give_other_tokens(prompt):
    head, second, third, tail = chain()
    assert generate([head, third, second, tail], prompt) != generate(chain(), prompt)


@settings(max_examples=25)
@given(prompts)
def test_a_chain_without_one_of_its_shards_gives_other_tokens(prompt):
    head, _, third, tail = chain()
    assert generate([head, third, tail], prompt) != generate(chain(), prompt)


@settings(max_examples=25)
@given(prompts)
def test_a_shard_that_is_one_position_off_gives_other_tokens(prompt):
    head, _, third, tail = chain()
    late = loaded(1, 2, OnePositionLate())
    assert generate([head, late, third, tail], prompt) != generate(chain(), prompt)


@settings(max_examples=25)
@given(prompts)
def test_a_shard_with_stale_positions_in_its_cache_gives_other_tokens(prompt):
    answers = []
    for second in (loaded(1, 2), loaded(1, 2, KeepsStalePositions())):
        head, _, third, tail = chain()
        engines = [head, second, third, tail]
        generate(engines, prompt)
        back, made = len(prompt), []
        for i in range(TOKENS):
            mode = CacheMode.TRUNCATE if i == 0 else CacheMode.EXACT
            result = through(engines, (7,), back + i, mode, TOKENS + i)
            made.append(result.token().token_id)
        answers.append(made)
    assert answers[0] != answers[1]


@settings(max_examples=25)
@given(prompts, st.integers(1, LAYERS - 1))
def test_any_cut_gives_the_tokens_of_the_whole(prompt, cut):
    whole = generate([loaded(0, LAYERS)], prompt)
    assert generate([loaded(0, cut), loaded(cut, LAYERS)], prompt) == whole


def told(*faults: Fault, slept: list[float] | None = None) -> FixtureEngine:
    """A whole model that goes wrong as told."""
    naps = [] if slept is None else slept
    return loaded(0, LAYERS, FixtureEngine(faults, sleep=naps.append))


def prefilled(engine: FixtureEngine) -> StepResult:
    return through([engine], (1, 2, 3), 0, CacheMode.FRESH, 0)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FaultKind.EXCEPTION, StatusCode.ENGINE_FAILED),
        (FaultKind.MEMORY_PRESSURE, StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_a_step_that_is_told_to_fail_does_and_the_next_works(kind, code):
    engine = told(Fault(kind, at_step=0))
    assert prefilled(engine).status.code is code
    assert prefilled(engine).output == prefilled(told()).output


def test_a_delay_and_a_hang_take_their_time():
    slept: list[float] = []
    engine = told(Fault(FaultKind.DELAY, 0, seconds=0.25), Fault(FaultKind.HANG, 1), slept=slept)
    assert prefilled(engine).output == prefilled(told()).output
    engine.release(KEY)
    prefilled(engine)
    assert slept == [0.25, HANG_SECONDS]


def test_wrong_output_is_well_formed_and_differs():
    assert prefilled(told(Fault(FaultKind.WRONG_OUTPUT, 0))).token() != prefilled(told()).token()
    head = loaded(0, 1, FixtureEngine([Fault(FaultKind.WRONG_OUTPUT, 0)]))
    wrong, right = (prefilled(each).boundary() for each in (head, loaded(0, 1)))
    assert wrong != right
    assert wrong.tensors[0].shape == right.tensors[0].shape


def test_malformed_output_is_what_no_shard_may_give():
    token = prefilled(told(Fault(FaultKind.MALFORMED_OUTPUT, 0))).token()
    assert token.token_id >= loaded(0, LAYERS).capabilities().n_vocab
    head = loaded(0, 1, FixtureEngine([Fault(FaultKind.MALFORMED_OUTPUT, 0)]))
    boundary = prefilled(head).output
    assert isinstance(boundary, BoundaryBundle)
    assert boundary.rows != 3


def test_a_fault_strikes_at_its_step_and_every_so_many_after_it():
    engine = told(Fault(FaultKind.EXCEPTION, at_step=1, every=3))
    failed = []
    for _ in range(8):
        failed.append(not prefilled(engine).status.ok)
        engine.release(KEY)
    assert failed == [False, True, False, False, True, False, False, True]


schedules = st.builds(
    FaultSchedule,
    st.integers(0, 2**32),
    st.floats(0, 1),
    st.lists(st.sampled_from(FaultKind), min_size=1, unique=True).map(tuple),
    st.floats(0, 5),
)


@given(schedules, st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_a_seeded_schedule_is_a_function_of_seed_and_step(schedule, steps):
    again = replace(schedule)
    assert {step: schedule.at(step) for step in steps} == {
        step: again.at(step) for step in reversed(steps)
    }
    faults = [fault for fault in map(schedule.at, steps) if fault is not None]
    assert {fault.kind for fault in faults} <= set(schedule.kinds)
    assert all(fault.seconds == schedule.seconds for fault in faults)


def test_a_seeded_schedule_strikes_about_as_often_as_asked_with_every_kind():
    schedule = FaultSchedule(3, 0.25, tuple(FaultKind))
    faults = [fault for fault in map(schedule.at, range(2000)) if fault is not None]
    assert 0.2 < len(faults) / 2000 < 0.3
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert FaultSchedule(3, 0, tuple(FaultKind)).at(0) is None
    other = FaultSchedule(4, 0.25, tuple(FaultKind))
    assert [other.at(step) for step in range(99)] != [schedule.at(step) for step in range(99)]


def test_an_engine_follows_its_schedule():
    schedule = FaultSchedule(5, 0.5, (FaultKind.EXCEPTION,))
    engine = loaded(0, LAYERS, FixtureEngine(schedule))
    failed = []
    for _ in range(30):
        failed.append(not prefilled(engine).status.ok)
        engine.release(KEY)
    assert failed == [schedule.at(step) is not None for step in range(30)]


@pytest.mark.parametrize("changed", [{"rate": 1.5}, {"rate": -0.1}, {"kinds": ()}])
def test_a_schedule_that_cant_be_is_refused_by_field(changed):
    with pytest.raises(InvalidArgumentError, match=next(iter(changed))):
        replace(FaultSchedule(0, 0.5, (FaultKind.HANG,)), **changed)
