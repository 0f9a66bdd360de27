"""A step that fails where nobody expects it, before or after the engine, stops nobody else's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from meshnet.domain.errors import InternalError
from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    EngineLimits,
    LoadRequest,
    PrefillRequest,
)
from meshnet.engine.fixture import N_EMBD, Fault, FaultKind, FixtureEngine
from meshnet.node.schedule import Pace
from meshnet.node.stepper import EngineStepper

TINY_PIECES = Pace(max_gap_seconds=1e-9)
TALKER, OTHER = (SessionKey(RouteSessionId(name), 0) for name in ("talker", "other"))
STEPS_BEFORE = 2
"""Steps of the engine that it takes until somebody talks."""


def residual(rows: int) -> EngineTensor:
    return EngineTensor(RESIDUAL, DType.FLOAT32, (rows, N_EMBD), bytes(4 * N_EMBD * rows))


def chunk(key: SessionKey, *tensors: EngineTensor) -> PrefillRequest:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    return PrefillRequest(key, 0, fresh, 0, input=BoundaryBundle(tensors))


def token(position: int) -> DecodeRequest:
    exact = CacheExpectation(CacheMode.EXACT, position)
    return DecodeRequest(TALKER, position, exact, position, input=BoundaryBundle((residual(1),)))


class Forgetful(FixtureEngine):
    """Can be made to not know what it can, once."""

    lost = False

    def capabilities(self) -> EngineCapabilities:
        if self.lost:
            self.lost = False
            raise RuntimeError("nothing is known")
        return super().capabilities()


@asynccontextmanager
async def talking(
    faults: Sequence[Fault] = (), engine: FixtureEngine | None = None
) -> AsyncIterator[EngineStepper]:
    """A middle node of which a session has its tokens, so that chunks are cut."""
    engine = engine or FixtureEngine(faults)
    recipe = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
    engine.load(LoadRequest(None, 1, 2, 3, recipe, EngineLimits(64, 8)))
    stepper = EngineStepper(engine, 8, TINY_PIECES)
    try:
        await stepper.run(chunk(TALKER, residual(1)))
        await stepper.run(token(1))
        yield stepper
    finally:
        stepper.close()


async def fails_alone(stepper: EngineStepper, request: PrefillRequest) -> None:
    async with asyncio.timeout(2):
        with pytest.raises(InternalError):
            await stepper.run(request)
        assert stepper.last_success is None, "it is to be proven again that the engine works"
        await stepper.run(token(2))
    assert stepper.last_success is not None


async def test_a_chunk_that_cant_be_cut_fails_alone():
    odd = EngineTensor("odd", DType.FLOAT32, (0,), b"")
    async with talking() as stepper:
        await fails_alone(stepper, chunk(OTHER, residual(8), odd))


async def test_a_chunk_whose_pieces_cant_be_joined_fails_alone():
    async with talking([Fault(FaultKind.MALFORMED_OUTPUT, STEPS_BEFORE + 1)]) as stepper:
        await fails_alone(stepper, chunk(OTHER, residual(2)))


async def test_where_no_step_can_be_chosen_those_that_wait_fail_alone():
    engine = Forgetful()
    async with talking(engine=engine) as stepper:
        engine.lost = True
        await fails_alone(stepper, chunk(OTHER, residual(2)))


async def test_of_steps_whose_figures_cant_be_kept_none_is_kept_either(
    caplog: pytest.LogCaptureFixture,
):
    async with talking() as stepper:
        stepper.figures = None  # type: ignore[assignment]
        for position in range(2, 5):
            await stepper.run(token(position))
            await asyncio.sleep(0.02)
        assert not stepper._plan.done
    assert "_note" in caplog.text
