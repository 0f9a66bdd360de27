"""What every engine must do, as checks that anybody's engine can be put through.

``assert_shard_engine_contract(make_engine)`` runs them all; each is also a function of its own in
``CHECKS``, so that a test runner can report them one by one. ``make_engine`` gives a fresh engine
and the request that loads it; limits must allow three sessions of 64 positions. A check uses no
more operations than its rule is about, so that an engine that breaks one rule fails that check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshnet.domain.lifecycle import CacheMode, LifecycleState
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StatusCode
from meshnet.domain.tensors import BoundaryBundle
from meshnet.engine.base import Output, TokenChoice, TokenOutput
from meshnet.engine.contract_bench import (
    DECODES,
    PROMPT,
    Bench,
    ContractViolation,
    MakeEngine,
    key,
    output,
    refused,
    require,
    wrong_requests,
)

__all__ = ["CHECKS", "ContractViolation", "MakeEngine", "assert_shard_engine_contract"]

ROWS = 5
"""Rows of a decode step of several."""


def assert_shard_engine_contract(make_engine: MakeEngine) -> None:
    """Run every check; raises :class:`ContractViolation` naming the first that fails."""
    for name, check in CHECKS.items():
        try:
            check(make_engine)
        except ContractViolation as violation:
            raise ContractViolation(f"{name}: {violation}") from violation


def health_before_load(make: MakeEngine) -> None:
    """An engine that loaded nothing says LOADING."""
    engine, _ = make()
    require(engine.health().state is LifecycleState.LOADING, "health before load isn't LOADING")


def capabilities_after_load(make: MakeEngine) -> None:
    """The range is the one asked for, multi-token prediction is off, health is READY."""
    engine, request = make()
    held = engine.load(request).capabilities
    require(held == engine.capabilities(), "load and capabilities disagree")
    require(
        (held.shard_start, held.shard_end, held.total_layers)
        == (request.shard_start, request.shard_end, request.total_layers),
        "the range differs from the request's",
    )
    require(not held.supports_mtp, "multi-token prediction is claimed")
    require(engine.health().state is LifecycleState.READY, "health after load isn't READY")


def replay_is_identical(make: MakeEngine) -> None:
    """The same steps in a fresh session give the same bytes, random draws included."""
    bench = Bench.of(make)
    drawn = TokenChoice(SamplingParams(temperature=1.0, seed=5))
    made = [
        [
            output(bench.engine.prefill(bench.prefill(key(name), choice=drawn))),
            *(bench.play_on(key(name), PROMPT, drawn)),
        ]
        for name in ("a", "b")
    ]
    require(made[0] == made[1], "a replay gave other bytes")


def output_kind(make: MakeEngine) -> None:
    """A tail gives tokens; any other shard a boundary with a row a position."""
    bench = Bench.of(make)
    made = bench.open(key("a"))
    if bench.capabilities.is_tail:
        require(isinstance(made, TokenOutput), "a tail gave no token")
    else:
        require(
            isinstance(made, BoundaryBundle)
            and made.tensors[0].shape == (PROMPT, bench.capabilities.n_embd),
            "a shard gave no boundary of the right shape",
        )


def decode_unopened(make: MakeEngine) -> None:
    """A decode step of a session that was never opened misses, every time."""
    bench = Bench.of(make)
    for _ in range(2):
        refused(bench.engine.decode(bench.decode(key("ghost"), PROMPT)), StatusCode.CACHE_MISS)


def wrong_past_len(make: MakeEngine) -> None:
    """A step that expects another length, or a fresh cache, misses and changes nothing."""
    bench = Bench.of(make)
    expected = bench.play(key("alone"))
    bench.open(key("a"))
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT + 1)), StatusCode.CACHE_MISS)
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT - 1)), StatusCode.CACHE_MISS)
    refused(bench.engine.prefill(bench.prefill(key("a"))), StatusCode.CACHE_MISS)
    require(bench.next(key("a"), PROMPT) == expected[1], "a missed step changed the cache")


def stale_epoch(make: MakeEngine) -> None:
    """Once a newer epoch ran, an older one is refused."""
    bench = Bench.of(make)
    bench.play(key("a", 1))
    bench.play(key("a", 2))
    refused(
        bench.engine.decode(bench.decode(key("a", 1), PROMPT + DECODES)), StatusCode.STALE_EPOCH
    )


def cancel_refuses(make: MakeEngine) -> None:
    """After cancel, steps are refused and the place is free; cancel may be said twice."""
    bench = Bench.of(make)
    bench.play(key("a"))
    bench.engine.cancel(key("a"))
    bench.engine.cancel(key("a"))
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT + DECODES)), StatusCode.CANCELLED)
    for number in range(bench.capabilities.limits.max_sessions):
        bench.open(key(str(number)))


def metrics_count_cancelled(make: MakeEngine) -> None:
    """Metrics count a session that was cancelled, once, and no longer as open."""
    bench = Bench.of(make)
    for name in ("a", "b"):
        bench.open(key(name))
    bench.engine.cancel(key("a"))
    bench.engine.cancel(key("a"))
    metrics = bench.engine.metrics()
    require(metrics.cancelled_sessions == 1, "a cancelled session isn't counted once")
    require(metrics.open_sessions == 1, "a cancelled session counts as open")


def release_forgets(make: MakeEngine) -> None:
    """After release, decode misses; release may be said twice; the name can be used anew."""
    bench = Bench.of(make)
    expected = bench.play(key("a"))
    bench.engine.release(key("a"))
    bench.engine.release(key("a"))
    refused(bench.engine.decode(bench.decode(key("a"), PROMPT + DECODES)), StatusCode.CACHE_MISS)
    bench.steps.clear()
    require(bench.play(key("a")) == expected, "a released name's cache wasn't empty")
    for number in range(1, bench.capabilities.limits.max_sessions):
        bench.open(key(str(number)))


def execute_equals_single(make: MakeEngine) -> None:
    """A mixed list of two sessions' steps gives what one by one gives."""
    bench = Bench.of(make)
    expected = bench.play(key("alone"))
    first = bench.engine.execute([bench.prefill(key("a"))])
    mixed = bench.engine.execute([bench.decode(key("a"), PROMPT), bench.prefill(key("b"))])
    both = bench.engine.execute(
        [bench.decode(key("b"), PROMPT), bench.decode(key("a"), PROMPT + 1)]
    )
    require(output(first[0]) == expected[0], "execute's prefill differs")
    require([output(r) for r in mixed] == [expected[1], expected[0]], "a mixed list differs")
    require([output(r) for r in both] == [expected[1], expected[2]], "a decode batch differs")


def duplicate_step(make: MakeEngine) -> None:
    """A repeated idempotency step gives the first result and doesn't advance the cache."""
    bench = Bench.of(make)
    expected = bench.play(key("alone"))
    bench.open(key("a"))
    request = bench.decode(key("a"), PROMPT)
    bench.engine.decode(request)
    again = bench.engine.decode(request)
    require(output(again) == expected[1] and again.duplicate, "a repeat isn't the first result")
    require(bench.next(key("a"), PROMPT + 1) == expected[2], "a repeat advanced the cache")


def rollback_is_exact(make: MakeEngine) -> None:
    """Going back to an earlier position and on equals never having gone past it."""
    bench = Bench.of(make)
    expected = bench.play(key("a"))
    back = bench.engine.decode(bench.decode(key("a"), PROMPT + 1, CacheMode.TRUNCATE))
    if not bench.capabilities.supports_rollback:
        refused(back, StatusCode.CACHE_MISS)
        bench.next(key("a"), PROMPT + DECODES)
        return
    after = bench.next(key("a"), PROMPT + 2)
    require([output(back), after] == expected[2:4], "a rolled back session differs")


def fork_is_exact(make: MakeEngine) -> None:
    """A session that begins as another one's prefix equals one that computed the prefix itself.

    Its source stays as it is, and may leave before it.
    """
    bench = Bench.of(make)
    expected = bench.play(key("alone"), DECODES + 1)
    bench.play(key("a"))
    taken = 1 if bench.capabilities.supports_rollback else DECODES
    fork = bench.fork(key("b"), key("a"), PROMPT + taken)
    require(output(bench.engine.prefill(fork)) == expected[taken + 1], "a fork differs")
    (own,) = bench.engine.execute([bench.decode(key("a"), PROMPT + DECODES)])
    require(output(own) == expected[DECODES + 1], "a fork changed its source")
    bench.engine.release(key("a"))
    made = [bench.next(key("b"), PROMPT + i) for i in range(taken + 1, DECODES + 1)]
    require(made == expected[taken + 2 :], "a fork differs later on")


def fork_misses(make: MakeEngine) -> None:
    """A fork of what isn't there misses, and so does one of a session that is open already."""
    bench = Bench.of(make)
    expected = bench.play(key("a"))
    for request in (
        bench.fork(key("b"), key("ghost"), 1),
        bench.fork(key("b"), key("a", 1), 1),
        bench.fork(key("b"), key("a"), PROMPT + DECODES + 1),
    ):
        refused(bench.engine.prefill(request), StatusCode.CACHE_MISS)
    bench.steps.clear()
    require(bench.play(key("b")) == expected, "a fork that missed left something")
    again = bench.fork(key("b"), key("a"), PROMPT + DECODES)
    refused(bench.engine.prefill(again), StatusCode.CACHE_MISS)


def decode_rows(make: MakeEngine) -> None:
    """A decode step of several rows equals as many of one row, a token after each on a tail."""
    bench = Bench.of(make)
    params = SamplingParams(temperature=1.0, seed=3, repeat_penalty=1.3, logprobs=True)
    history = bench.tokens(0, PROMPT)
    first = bench.open(key("a"), TokenChoice(params, history))
    history += (_token(first),)
    singles: list[Output] = []
    for i in range(ROWS):
        tokens = history + tuple(map(_token, singles))
        request = bench.decode(key("a"), PROMPT + i, choice=TokenChoice(params, tokens))
        singles.append(output(bench.engine.decode(request)))
    bench.open(key("b"), TokenChoice(params, history[:PROMPT]))
    choice = TokenChoice(params, history, tuple(map(_token, singles[:-1])))
    made = bench.engine.decode(bench.decode(key("b"), PROMPT, rows=ROWS, choice=choice))
    output(made)
    if bench.capabilities.is_tail:
        require(list(made.tokens()) == singles, "a row's token differs from a single step's")
    else:
        alone = b"".join(_data(single) for single in singles)
        require(_data(made.boundary()) == alone, "a row differs from a single step")
    after = [bench.next(key(name), PROMPT + ROWS) for name in ("a", "b")]
    require(after[0] == after[1], "the cache behind several rows differs")


def _token(made: Output) -> int:
    """A tail's choice; what the next one is chosen after, where there is none, doesn't matter."""
    return made.token_id if isinstance(made, TokenOutput) else 0


def _data(made: Output) -> bytes:
    require(isinstance(made, BoundaryBundle), "a shard that is no tail gave no boundary")
    return bytes(made.tensors[0].data) if isinstance(made, BoundaryBundle) else b""


def interleaved_equals_alone(make: MakeEngine) -> None:
    """Two sessions step by step in turn give what each gives alone."""
    bench = Bench.of(make)
    expected = bench.play(key("alone"))
    names = (key("a"), key("b"))
    made = [[bench.open(name)] for name in names]
    for i in range(DECODES):
        for name, outputs in zip(names, made, strict=True):
            outputs.append(bench.next(name, PROMPT + i))
    require(made == [expected, expected], "neighbours change a session")


def errors_leave_it_working(make: MakeEngine) -> None:
    """After each kind of refusal, the next valid request works, also of a session that is open."""
    bench = Bench.of(make)
    expected = bench.play(key("alone"), 3)
    bench.open(key("gone"))
    bench.engine.cancel(key("gone"))
    bench.open(key("a"))
    too_long = bench.capabilities.limits.context_length + 1
    for number, request in enumerate(
        (
            bench.decode(key("ghost"), PROMPT),
            bench.prefill(key("long"), too_long),
            bench.decode(key("gone"), PROMPT),
        )
    ):
        bench.engine.execute([request])
        require(bench.next(key("a"), PROMPT + number) == expected[number + 1], "a session differs")


def bad_input_is_refused(make: MakeEngine) -> None:
    """Inputs of the wrong kind, shape or value are refused, and hold no place."""
    bench = Bench.of(make)
    expected = bench.open(key("alone"))
    for request in wrong_requests(bench, key("wrong")):
        (result,) = bench.engine.execute([request])
        require(not result.status.ok, f"a bad request was accepted: {request}")
    for number in range(1, bench.capabilities.limits.max_sessions):
        require(bench.open(key(str(number))) == expected, "after bad input a session differs")


def sessions_are_bounded(make: MakeEngine) -> None:
    """One session more than the limit is refused."""
    bench = Bench.of(make)
    for number in range(bench.capabilities.limits.max_sessions):
        bench.open(key(str(number)))
    refused(bench.engine.prefill(bench.prefill(key("more"))), StatusCode.RESOURCE_EXHAUSTED)


def bad_choice_is_its_own(make: MakeEngine) -> None:
    """Parameters that can't be met fail one step; its neighbours, and its cache, are as before.

    An engine that can't go back has lost the cache: the next step misses.
    """
    bench = Bench.of(make)
    if not bench.capabilities.is_tail:
        return
    expected = bench.play(key("alone"))
    outside = {bench.capabilities.n_vocab: 1.0}
    choice = TokenChoice(SamplingParams(temperature=0.0, logit_bias=outside))
    (fresh,) = bench.engine.execute([bench.prefill(key("c"), choice=choice)])
    refused(fresh, StatusCode.INVALID_ARGUMENT)
    for name in ("b", "a"):
        bench.open(key(name))
    bad, good = bench.engine.execute(
        [bench.decode(key("a"), PROMPT, choice=choice), bench.decode(key("b"), PROMPT)]
    )
    refused(bad, StatusCode.INVALID_ARGUMENT)
    require(output(good) == expected[1], "a neighbour's bad parameters change a session")
    require(bench.engine.health().state is LifecycleState.READY, "bad parameters are no failure")
    again = bench.engine.decode(bench.decode(key("a"), PROMPT))
    if bench.capabilities.supports_rollback:
        require(output(again) == expected[1], "a step that failed changed the cache")
    else:
        refused(again, StatusCode.CACHE_MISS)


def grammars_are_kept_or_refused(make: MakeEngine) -> None:
    """A tail chooses what a grammar allows, or says that it can't; others needn't know of it."""
    bench = Bench.of(make)
    if not bench.capabilities.is_tail:
        return
    bench.open(key("alone"))
    choice = TokenChoice(SamplingParams(grammar='root ::= "a"'))
    made = bench.engine.prefill(bench.prefill(key("a"), choice=choice))
    if not bench.capabilities.supports_grammar:
        refused(made, StatusCode.INVALID_ARGUMENT)
        return
    output(made)
    token = made.tokens()[0].token_id
    ended = replace(choice, history=(token,), generated=1)
    end = output(bench.engine.decode(bench.decode(key("a"), PROMPT, choice=ended)))
    require(_token(end) != token, "a text goes on past its grammar's end")
    wrong = replace(choice, history=(_token(end), token), generated=2)
    refused(
        bench.engine.decode(bench.decode(key("a"), PROMPT + 1, choice=wrong)),
        StatusCode.INVALID_ARGUMENT,
    )
    require(bench.engine.health().state is LifecycleState.READY, "a wrong grammar is no failure")


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
        metrics_count_cancelled,
        release_forgets,
        execute_equals_single,
        duplicate_step,
        rollback_is_exact,
        fork_is_exact,
        fork_misses,
        decode_rows,
        interleaved_equals_alone,
        errors_leave_it_working,
        bad_input_is_refused,
        sessions_are_bounded,
        bad_choice_is_its_own,
        grammars_are_kept_or_refused,
    )
}
