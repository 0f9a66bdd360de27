"""What every engine must do, as checks that anybody's engine can be put through.

``assert_shard_engine_contract(make_engine)`` runs them all; each is also a function of its own in
``CHECKS``, so that a test runner can report them one by one. ``make_engine`` gives a fresh engine
and the request that loads it; limits must allow two sessions of 64 positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshnet.domain.frames import SessionKey
from meshnet.domain.ids import RouteSessionId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, LifecycleState
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StatusCode
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    LoadRequest,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenChoice,
    TokenOutput,
)

MakeEngine = Callable[[], tuple[ShardEngine, LoadRequest]]
PROMPT = 7
DECODES = 4


class ContractViolation(AssertionError):  # noqa: N818 - it says what happened
    """An engine does something else than the contract says."""


def assert_shard_engine_contract(make_engine: MakeEngine) -> None:
    """Run every check; raises :class:`ContractViolation` naming the first that fails."""
    for name, check in CHECKS.items():
        try:
            check(make_engine)
        except ContractViolation as violation:
            raise ContractViolation(f"{name}: {violation}") from violation


@dataclass(slots=True)
class _Bench:
    """A loaded engine and inputs that are equal for equal positions."""

    engine: ShardEngine
    capabilities: EngineCapabilities
    steps: dict[SessionKey, int] = field(default_factory=dict)

    @staticmethod
    def of(make_engine: MakeEngine) -> _Bench:
        engine, request = make_engine()
        engine.load(request)
        return _Bench(engine, engine.capabilities())

    def inputs(self, position: int, rows: int) -> tuple[tuple[int, ...], BoundaryBundle | None]:
        if self.capabilities.is_head:
            return tuple((17 * (position + i) + 3) % 60 for i in range(rows)), None
        width = self.capabilities.n_embd
        values = np.concatenate(
            [np.random.default_rng(position + i).integers(0, 9, width) for i in range(rows)]
        )
        data = values.astype(np.float32).tobytes()
        return (), BoundaryBundle((EngineTensor(RESIDUAL, DType.FLOAT32, (rows, width), data),))

    def step_number(self, key: SessionKey) -> int:
        self.steps[key] = self.steps.get(key, -1) + 1
        return self.steps[key]

    def prefill(self, key: SessionKey, rows: int = PROMPT) -> PrefillRequest:
        tokens, bundle = self.inputs(0, rows)
        fresh = CacheExpectation(CacheMode.FRESH, 0)
        return PrefillRequest(key, 0, fresh, self.step_number(key), tokens, bundle)

    def decode(
        self, key: SessionKey, position: int, mode: CacheMode = CacheMode.EXACT
    ) -> DecodeRequest:
        tokens, bundle = self.inputs(position, 1)
        expectation = CacheExpectation(mode, position)
        return DecodeRequest(key, position, expectation, self.step_number(key), tokens, bundle)

    def play(self, key: SessionKey, decodes: int = DECODES) -> list[object]:
        """Prefill and some decode steps; their outputs."""
        results = [self.engine.prefill(self.prefill(key))]
        results += [self.engine.decode(self.decode(key, PROMPT + i)) for i in range(decodes)]
        return [output(result) for result in results]


def key(name: str, epoch: int = 0) -> SessionKey:
    """A session's key."""
    return SessionKey(RouteSessionId(name), epoch)


def output(result: StepResult) -> object:
    """An OK result's output, comparable bit for bit."""
    _require(result.status.ok, f"a valid step failed: {result.status}")
    return result.output


def refused(result: StepResult, code: StatusCode) -> None:
    """Require that a step was refused with that code."""
    _require(result.status.code is code, f"{code.value} was due, but came {result.status}")


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise ContractViolation(message)


def health_before_load(make: MakeEngine) -> None:
    """An engine that loaded nothing says LOADING."""
    engine, _ = make()
    _require(engine.health().state is LifecycleState.LOADING, "health before load isn't LOADING")


def capabilities_after_load(make: MakeEngine) -> None:
    """The range is the one asked for, multi-token prediction is off, health is READY."""
    engine, request = make()
    engine.load(request)
    held = engine.capabilities()
    _require(
        (held.shard_start, held.shard_end, held.total_layers)
        == (request.shard_start, request.shard_end, request.total_layers),
        "the range differs from the request's",
    )
    _require(not held.supports_mtp, "multi-token prediction is claimed")
    _require(engine.health().state is LifecycleState.READY, "health after load isn't READY")


def replay_is_identical(make: MakeEngine) -> None:
    """The same steps in a fresh session give the same bytes."""
    bench = _Bench.of(make)
    _require(bench.play(key("a")) == bench.play(key("b")), "a replay gave other bytes")


def output_kind(make: MakeEngine) -> None:
    """A tail gives tokens; any other shard a boundary with a row a position."""
    bench = _Bench.of(make)
    result = bench.engine.prefill(bench.prefill(key("a")))
    made = output(result)
    if bench.capabilities.is_tail:
        _require(isinstance(made, TokenOutput), "a tail gave no token")
    else:
        _require(
            isinstance(made, BoundaryBundle)
            and made.tensors[0].shape == (PROMPT, bench.capabilities.n_embd),
            "a shard gave no boundary of the right shape",
        )


def decode_unopened(make: MakeEngine) -> None:
    """A decode step of a session that was never opened misses, every time."""
    bench = _Bench.of(make)
    for _ in range(2):
        refused(bench.engine.decode(bench.decode(key("ghost"), PROMPT)), StatusCode.CACHE_MISS)


def wrong_past_len(make: MakeEngine) -> None:
    """A step that expects another length misses and changes nothing."""
    bench = _Bench.of(make)
    expected = bench.play(key("a"))
    bench.engine.prefill(bench.prefill(key("b")))
    refused(bench.engine.decode(bench.decode(key("b"), PROMPT + 1)), StatusCode.CACHE_MISS)
    refused(bench.engine.decode(bench.decode(key("b"), PROMPT - 1)), StatusCode.CACHE_MISS)
    made = output(bench.engine.decode(bench.decode(key("b"), PROMPT)))
    _require(made == expected[1], "a missed step changed the cache")


def stale_epoch(make: MakeEngine) -> None:
    """Once a newer epoch ran, an older one is refused."""
    bench = _Bench.of(make)
    bench.play(key("a", 1))
    bench.play(key("a", 2))
    refused(
        bench.engine.decode(bench.decode(key("a", 1), PROMPT + DECODES)), StatusCode.STALE_EPOCH
    )


def cancel_refuses(make: MakeEngine) -> None:
    """After cancel, steps are refused; cancel may be said twice; metrics count the session once."""
    bench = _Bench.of(make)
    bench.play(key("a"))
    bench.engine.cancel(key("a"))
    bench.engine.cancel(key("a"))
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT + DECODES)), StatusCode.CANCELLED)
    metrics = bench.engine.metrics()
    _require(metrics.cancelled_sessions == 1, "metrics don't count the cancelled session once")
    _require(metrics.open_sessions == 0, "a cancelled session holds its place")


def release_forgets(make: MakeEngine) -> None:
    """After release, decode misses; release may be said twice; the name can be used anew."""
    bench = _Bench.of(make)
    expected = bench.play(key("a"))
    bench.engine.release(key("a"))
    bench.engine.release(key("a"))
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT + DECODES)), StatusCode.CACHE_MISS)
    bench.steps.clear()
    _require(bench.play(key("a")) == expected, "a released name's cache wasn't empty")


def execute_equals_single(make: MakeEngine) -> None:
    """A mixed list of two sessions' steps gives what one by one gives."""
    bench = _Bench.of(make)
    expected = bench.play(key("alone"))
    bench.engine.release(key("alone"))
    first = bench.engine.execute([bench.prefill(key("a"))])
    mixed = bench.engine.execute([bench.decode(key("a"), PROMPT), bench.prefill(key("b"))])
    both = bench.engine.execute(
        [bench.decode(key("b"), PROMPT), bench.decode(key("a"), PROMPT + 1)]
    )
    _require(output(first[0]) == expected[0], "execute's prefill differs")
    _require([output(r) for r in mixed] == [expected[1], expected[0]], "a mixed list differs")
    _require([output(r) for r in both] == [expected[1], expected[2]], "a decode batch differs")


def duplicate_step(make: MakeEngine) -> None:
    """A repeated idempotency step gives the first result and doesn't advance the cache."""
    bench = _Bench.of(make)
    expected = bench.play(key("a"))
    bench.engine.prefill(bench.prefill(key("b")))
    request = bench.decode(key("b"), PROMPT)
    bench.engine.decode(request)
    again = bench.engine.decode(request)
    _require(output(again) == expected[1] and again.duplicate, "a repeat isn't the first result")
    made = output(bench.engine.decode(bench.decode(key("b"), PROMPT + 1)))
    _require(made == expected[2], "a repeat advanced the cache")


def rollback_is_exact(make: MakeEngine) -> None:
    """Going back to an earlier position and on equals never having gone past it."""
    bench = _Bench.of(make)
    expected = bench.play(key("a"))
    again = output(bench.engine.decode(bench.decode(key("a"), PROMPT + 1, CacheMode.TRUNCATE)))
    after = output(bench.engine.decode(bench.decode(key("a"), PROMPT + 2)))
    _require([again, after] == expected[2:4], "a rolled back session differs")


def interleaved_equals_alone(make: MakeEngine) -> None:
    """Two sessions step by step in turn give what each gives alone."""
    bench = _Bench.of(make)
    expected = bench.play(key("alone"))
    bench.engine.release(key("alone"))
    names = (key("a"), key("b"))
    made = [[output(bench.engine.prefill(bench.prefill(name)))] for name in names]
    for i in range(DECODES):
        for name, outputs in zip(names, made, strict=True):
            result = bench.engine.decode(bench.decode(name, PROMPT + i))
            outputs.append(output(result))
    _require(made == [expected, expected], "neighbours change a session")


def errors_leave_it_working(make: MakeEngine) -> None:
    """After each kind of refusal, the next valid request works."""
    bench = _Bench.of(make)
    expected = bench.play(key("alone"))
    bench.engine.release(key("alone"))
    refusals: Sequence[StepRequest] = (
        bench.decode(key("ghost"), 3),
        bench.prefill(key("long"), bench.capabilities.limits.context_length + 1),
        _wrong_kind(bench, key("kind")),
        *_wrong_values(bench, key("values")),
    )
    for number, request in enumerate(refusals):
        (result,) = bench.engine.execute([request])
        _require(not result.status.ok, f"a bad request was accepted: {request}")
        _require(bench.engine.metrics().open_sessions == 0, f"it holds a place: {request}")
        name = key(f"after-{number}")
        _require(bench.play(name) == expected, f"after {result.status.code.value} it differs")
        bench.engine.release(name)


def sessions_are_bounded(make: MakeEngine) -> None:
    """One session more than the limit is refused, and fits once another has left."""
    bench = _Bench.of(make)
    names = [key(str(i)) for i in range(bench.capabilities.limits.max_sessions)]
    for name in names:
        output(bench.engine.prefill(bench.prefill(name)))
    refused(bench.engine.prefill(bench.prefill(key("more"))), StatusCode.RESOURCE_EXHAUSTED)
    bench.engine.release(names[0])
    output(bench.engine.prefill(bench.prefill(key("more"))))


def bad_choice_is_its_own(make: MakeEngine) -> None:
    """Parameters that can't be met fail one step; its neighbours, and its cache, are as before."""
    bench = _Bench.of(make)
    if not bench.capabilities.is_tail:
        return
    expected = bench.play(key("alone"))
    bench.engine.release(key("alone"))
    outside = {bench.capabilities.n_vocab: 1.0}
    choice = TokenChoice(SamplingParams(temperature=0.0, logit_bias=outside))
    (fresh,) = bench.engine.execute([replace(bench.prefill(key("a")), choice=choice)])
    refused(fresh, StatusCode.INVALID_ARGUMENT)
    _require(bench.engine.metrics().open_sessions == 0, "a failed first step holds a place")
    for name in ("a", "b"):
        output(bench.engine.prefill(bench.prefill(key(name))))
    bad, good = bench.engine.execute(
        [replace(bench.decode(key("a"), PROMPT), choice=choice), bench.decode(key("b"), PROMPT)]
    )
    refused(bad, StatusCode.INVALID_ARGUMENT)
    _require(output(good) == expected[1], "a neighbour's bad parameters change a session")
    _require(bench.engine.health().state is LifecycleState.READY, "bad parameters are no failure")
    made = output(bench.engine.decode(bench.decode(key("a"), PROMPT)))
    _require(made == expected[1], "a step that failed changed the cache")


def _wrong_values(bench: _Bench, name: SessionKey) -> list[StepRequest]:
    """Token ids that don't exist, or boundaries that no shard gives."""
    good = PrefillRequest(name, 0, CacheExpectation(CacheMode.FRESH, 0), 0, *bench.inputs(0, 2))
    if good.input is None:
        return [replace(good, token_ids=(1, outside)) for outside in (-1, 2**31 - 1)]
    (tensor,) = good.input.tensors
    width = bench.capabilities.n_embd
    shapes = ((1, 2 * width), (2 * width, 1), (2 * width,), (2, width, 1))
    tensors: list[tuple[EngineTensor, ...]] = [(replace(tensor, shape=shape),) for shape in shapes]
    tensors += [
        (EngineTensor(RESIDUAL, DType.FLOAT32, tensor.shape, value.tobytes()),)
        for value in (np.full(tensor.shape, bad, np.float32) for bad in (np.nan, np.inf))
    ]
    tensors += [
        (EngineTensor(RESIDUAL, DType.FLOAT16, tensor.shape, tensor.data[: 4 * width]),),
        (replace(tensor, name="norm"),),
        (tensor, replace(tensor, name="second")),
    ]
    return [replace(good, input=BoundaryBundle(wrong)) for wrong in tensors]


def _wrong_kind(bench: _Bench, name: SessionKey) -> StepRequest:
    """Token ids for a shard that takes a boundary, and the other way round."""
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    if not bench.capabilities.is_head:
        return PrefillRequest(name, 0, fresh, 0, token_ids=(1,))
    row = EngineTensor(RESIDUAL, DType.FLOAT32, (1, 1), bytes(4))
    return PrefillRequest(name, 0, fresh, 0, input=BoundaryBundle((row,)))


CHECKS: dict[str, Callable[[MakeEngine], None]] = {
    check.__name__: check
    for check in (
        health_before_load,
        capabilities_after_load,
        replay_is_identical,
        output_kind,
        decode_unopened,
        wrong_past_len,
        stale_epoch,
        cancel_refuses,
        release_forgets,
        execute_equals_single,
        duplicate_step,
        rollback_is_exact,
        interleaved_equals_alone,
        errors_leave_it_working,
        sessions_are_bounded,
        bad_choice_is_its_own,
    )
}
