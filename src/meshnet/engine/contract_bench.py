"""The contract suite's tools: a loaded engine, and inputs that depend on positions alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.status import StatusCode
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    LoadRequest,
    Output,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenChoice,
)

MakeEngine = Callable[[], tuple[ShardEngine, LoadRequest]]
PROMPT = 7
DECODES = 4


class ContractViolation(AssertionError):  # noqa: N818 - it says what happened
    """An engine does something else than the contract says."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001
    """Raise :class:`ContractViolation` unless the condition holds."""
    if not condition:
        raise ContractViolation(message)


def key(name: str, epoch: int = 0) -> SessionKey:
    """A session's key."""
    return SessionKey(RouteSessionId(name), epoch)


def output(result: StepResult) -> Output:
    """An OK result's output, comparable bit for bit."""
    if result.output is None or not result.status.ok:
        raise ContractViolation(f"a valid step failed: {result.status}")
    return result.output


def refused(result: StepResult, code: StatusCode) -> None:
    """Require that a step was refused with that code."""
    require(result.status.code is code, f"{code.value} was due, but came {result.status}")


@dataclass(slots=True)
class Bench:
    """A loaded engine, and steps for it whose inputs are equal for equal positions."""

    engine: ShardEngine
    capabilities: EngineCapabilities
    steps: dict[SessionKey, int] = field(default_factory=dict)

    @staticmethod
    def of(make_engine: MakeEngine) -> Bench:
        """A bench with a new engine."""
        engine, request = make_engine()
        engine.load(request)
        return Bench(engine, engine.capabilities())

    def tokens(self, position: int, rows: int) -> tuple[int, ...]:
        """Token ids of these positions."""
        return tuple((17 * (position + i) + 3) % 60 for i in range(rows))

    def inputs(self, position: int, rows: int) -> tuple[tuple[int, ...], BoundaryBundle | None]:
        """Token ids for a head, a boundary for any other shard."""
        if self.capabilities.is_head:
            return self.tokens(position, rows), None
        width = self.capabilities.n_embd
        values = np.concatenate(
            [np.random.default_rng(position + i).integers(0, 9, width) for i in range(rows)]
        )
        data = values.astype(np.float32).tobytes()
        return (), BoundaryBundle((EngineTensor(RESIDUAL, DType.FLOAT32, (rows, width), data),))

    def step_number(self, of: SessionKey) -> int:
        """The session's next idempotency step."""
        self.steps[of] = self.steps.get(of, -1) + 1
        return self.steps[of]

    def prefill(
        self, of: SessionKey, rows: int = PROMPT, choice: TokenChoice | None = None
    ) -> PrefillRequest:
        """The first chunk of a session."""
        tokens, bundle = self.inputs(0, rows)
        fresh = CacheExpectation(CacheMode.FRESH, 0)
        number = self.step_number(of)
        return PrefillRequest(of, 0, fresh, number, tokens, bundle, choice or TokenChoice())

    def fork(self, of: SessionKey, source: SessionKey, position: int) -> PrefillRequest:
        """The first step, one row, of a session that begins as another one up to ``position``."""
        tokens, bundle = self.inputs(position, 1)
        fork = CacheExpectation(CacheMode.FORK, position, source)
        return PrefillRequest(of, position, fork, self.step_number(of), tokens, bundle)

    def decode(
        self,
        of: SessionKey,
        position: int,
        mode: CacheMode = CacheMode.EXACT,
        *,
        rows: int = 1,
        choice: TokenChoice | None = None,
    ) -> DecodeRequest:
        """A decode step from ``position`` on."""
        tokens, bundle = self.inputs(position, rows)
        wanted = CacheExpectation(mode, position)
        number = self.step_number(of)
        return DecodeRequest(of, position, wanted, number, tokens, bundle, choice or TokenChoice())

    def open(self, of: SessionKey, choice: TokenChoice | None = None) -> Output:
        """Prefill a session; its output."""
        return output(self.engine.prefill(self.prefill(of, choice=choice)))

    def play_on(self, of: SessionKey, position: int, choice: TokenChoice) -> list[Output]:
        """Decode steps from ``position`` on, chosen so; their outputs."""
        return [
            output(self.engine.decode(self.decode(of, position + i, choice=choice)))
            for i in range(DECODES)
        ]

    def next(self, of: SessionKey, position: int) -> Output:
        """One decode step of a session; its output."""
        return output(self.engine.decode(self.decode(of, position)))

    def play(self, of: SessionKey, decodes: int = DECODES) -> list[Output]:
        """Prefill and some decode steps; their outputs."""
        return [self.open(of), *(self.next(of, PROMPT + i) for i in range(decodes))]


def wrong_requests(bench: Bench, name: SessionKey) -> list[StepRequest]:
    """First steps that no engine may compute: of the wrong kind, or with values that can't be."""
    return [_wrong_kind(bench, name), *_wrong_values(bench, name)]


def _wrong_values(bench: Bench, name: SessionKey) -> list[StepRequest]:
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


def _wrong_kind(bench: Bench, name: SessionKey) -> StepRequest:
    """Token ids for a shard that takes a boundary, and the other way round."""
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    if not bench.capabilities.is_head:
        return PrefillRequest(name, 0, fresh, 0, token_ids=(1,))
    row = EngineTensor(RESIDUAL, DType.FLOAT32, (1, 1), bytes(4))
    return PrefillRequest(name, 0, fresh, 0, input=BoundaryBundle((row,)))
