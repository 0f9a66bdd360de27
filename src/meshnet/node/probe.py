"""A step that proves an engine works: one row, in a session of its own, dropped at once."""

from __future__ import annotations

from meshnet.domain.errors import error_from
from meshnet.domain.ids import SessionKey, new_route_session_id
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import EngineCapabilities, PrefillRequest, ShardEngine, StepResult
from meshnet.node.stepper import EngineStepper

PROBE_TIMEOUT_SECONDS = 10.0


def probe_request(capabilities: EngineCapabilities) -> PrefillRequest:
    """Token 0 on a head; a row of zeros on a middle or tail."""
    key = SessionKey(new_route_session_id(), 0)
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    if capabilities.is_head:
        return PrefillRequest(key, 0, fresh, 0, token_ids=(0,))
    data = bytes(4 * capabilities.n_embd)
    row = EngineTensor(RESIDUAL, DType.FLOAT32, (1, capabilities.n_embd), data)
    return PrefillRequest(key, 0, fresh, 0, input=BoundaryBundle((row,)))


async def probe(engine: ShardEngine, stepper: EngineStepper) -> None:
    """Run one; raises what the engine's status says.

    The step and the release are one turn of the engine's thread: a session that arrives meanwhile
    never finds the place taken.
    """
    request = probe_request(await stepper.call(engine.capabilities))

    def run() -> StepResult:
        result = engine.prefill(request)
        engine.release(request.key)
        return result

    result = await stepper.call(run)
    if not result.status.ok:
        raise error_from(result.status)
    stepper.note_success()
