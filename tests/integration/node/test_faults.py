"""Each way in which an engine can go wrong is its own error, and the node serves on."""

import asyncio
import time

import pytest

from meshnet.domain.errors import (
    DeadlineExceededError,
    EngineError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import StepRequest, StepResult
from meshnet.engine.fixture import Fault, FaultKind
from tests.support.mesh import Setup, alone, ask, mesh, prompt_of

ANY_PLACE = pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
WHEN = pytest.mark.parametrize("step", [0, 2, 5], ids=["first chunk", "last chunk", "decode"])
PROMPT = prompt_of(20)


def faulty(place: int, kind: FaultKind, step: int, every: int = 0) -> Setup:
    return Setup(faults={place: (Fault(kind, step, every),)})


@ANY_PLACE
@WHEN
@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (FaultKind.EXCEPTION, EngineError, "told to fail"),
        (FaultKind.MEMORY_PRESSURE, ResourceExhaustedError, "out of memory"),
    ],
    ids=["exception", "memory"],
)
async def test_a_failure_names_its_node_and_the_next_generation_works(
    place, step, kind, error, said
):
    async with mesh((2, 4), faulty(place, kind, step)) as chain:
        model = await chain.model()
        with pytest.raises(error, match=said) as caught:
            await ask(model, PROMPT)
        hop = chain.nodes[place].hop
        assert hop.node_id in caught.value.message
        assert str(hop.layers) in caught.value.message
        assert caught.value.details["node"] == hop.node_id
        await chain.idle()
        assert (await ask(model, PROMPT)).tokens == alone(PROMPT)


@ANY_PLACE
@pytest.mark.parametrize("step", [2, 5], ids=["last chunk", "decode"])
async def test_malformed_output_never_leaves_its_node(place, step):
    async with mesh((2, 4), faulty(place, FaultKind.MALFORMED_OUTPUT, step)) as chain:
        model = await chain.model()
        with pytest.raises(EngineError) as caught:
            await ask(model, PROMPT)
        assert caught.value.details["node"] == chain.nodes[place].hop.node_id
        await chain.idle()
        assert (await ask(model, PROMPT)).tokens == alone(PROMPT)


@ANY_PLACE
async def test_wrong_but_well_formed_output_changes_the_tokens(place):
    async with mesh((2, 4), faulty(place, FaultKind.WRONG_OUTPUT, 5)) as chain:
        model = await chain.model()
        wrong = (await ask(model, PROMPT)).tokens
        expected = alone(PROMPT)
        assert wrong[:3] == expected[:3]
        assert wrong != expected
        assert (await ask(model, PROMPT)).tokens == expected


async def test_a_failure_of_one_session_leaves_the_others_alone():
    setup = faulty(1, FaultKind.EXCEPTION, 25)
    async with mesh((2, 4), setup) as chain:
        model = await chain.model()
        prompts = [prompt_of(9, seed) for seed in range(5)]
        results = await asyncio.gather(
            *(ask(model, prompt, 20) for prompt in prompts), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, EngineError)]
        assert len(failed) == 1
        for prompt, result in zip(prompts, results, strict=True):
            if not isinstance(result, BaseException):
                assert result.tokens == alone(prompt, 20)


async def test_a_delay_changes_nothing():
    setup = Setup(faults={1: (Fault(FaultKind.DELAY, 1, every=3, seconds=0.01),)})
    async with mesh((2, 4), setup) as chain:
        assert (await ask(await chain.model(), PROMPT)).tokens == alone(PROMPT)


@ANY_PLACE
async def test_a_hanging_engine_ends_at_the_deadline(place):
    async with mesh((2, 4), faulty(place, FaultKind.HANG, 5)) as chain:
        model = await chain.model()
        began = time.perf_counter()
        with pytest.raises(DeadlineExceededError):
            await ask(model, PROMPT, timeout_seconds=0.4)
        assert time.perf_counter() - began < 1.0
        assert [nodes for nodes, _ in chain.open_sessions()] == [0, 0, 0]


async def test_bad_parameters_are_their_senders_error_alone():
    async with mesh((2, 4)) as chain:
        model = await chain.model()
        outside = SamplingParams(temperature=0.0, logit_bias={99_999: 1.0})
        good, bad = await asyncio.gather(
            ask(model, PROMPT, 20), ask(model, PROMPT, 20, outside), return_exceptions=True
        )
        assert not isinstance(good, BaseException)
        assert good.tokens == alone(PROMPT, 20)
        assert isinstance(bad, InvalidArgumentError)
        assert bad.message.startswith("logit_bias")


async def test_token_ids_outside_the_vocabulary_are_refused():
    async with mesh((2, 4)) as chain:
        model = await chain.model()
        with pytest.raises(InvalidArgumentError, match="token_ids"):
            await ask(model, (1, 2, 10_000))


@pytest.mark.parametrize("breach", ["raises", "loses a result"])
async def test_an_engine_that_breaks_its_contract_is_an_internal_error(breach, monkeypatch, caplog):
    async with mesh((3,)) as chain:
        model = await chain.model()
        engine = chain.nodes[1].engine

        def broken(requests: list[StepRequest]) -> list[StepResult]:
            if breach == "raises":
                raise ZeroDivisionError("oh")
            return []

        monkeypatch.setattr(engine, "execute", broken)
        with pytest.raises(InternalError) as caught:
            await ask(model, PROMPT)
        assert caught.value.details["node"] == "node-2"
        monkeypatch.undo()
        await chain.idle()
        assert (await ask(model, PROMPT)).tokens == alone(PROMPT)
    assert "broke its contract" in caplog.text
