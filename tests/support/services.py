"""Small shard services that a transport can be tried with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from meshnet.domain.frames import (
    DecodeFrame,
    SeamReply,
    SeamRequest,
    TokenReply,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import SessionKey
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.transport.base import ServerSeam, ShardService
from tests.support.frames import CAPABILITY

Answer = Callable[[SeamRequest], Iterable[SeamReply]]


def token_per_step(request: SeamRequest) -> Iterable[SeamReply]:
    """A token for every decode step, which names the step it is for."""
    if isinstance(request, DecodeFrame):
        for step in request.steps:
            yield TokenReply(step.handle, step.step, GeneratedToken(step.position + 1, 7))


class ScriptedService(ShardService):
    """Answers each request by a function, and remembers what it was asked."""

    def __init__(self, answer: Answer = token_per_step) -> None:
        self._answer = answer
        self.received: list[SeamRequest] = []
        self.released: list[SessionKey] = []
        self.cancelled: list[tuple[SessionKey, str]] = []
        self.serving = 0
        self.saw_end = asyncio.Event()
        self.idle = asyncio.Event()

    async def capability(self) -> Capability:
        return CAPABILITY

    async def health(self) -> HealthReport:
        return HealthReport(LifecycleState.READY, open_sessions=self.serving, steps_done=9)

    async def release(self, key: SessionKey) -> None:
        self.released.append(key)

    async def cancel(self, key: SessionKey, reason: str) -> None:
        self.cancelled.append((key, reason))

    async def serve_seam(self, seam: ServerSeam) -> None:
        self.serving += 1
        self.idle.clear()
        try:
            while (request := await seam.receive()) is not None:
                self.received.append(request)
                for reply in self._answer(request):
                    seam.send(reply)
            self.saw_end.set()
        finally:
            self.serving -= 1
            if not self.serving:
                self.idle.set()


class FailingService(ScriptedService):
    """Raises one error from every method."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def capability(self) -> Capability:
        raise self.error

    async def health(self) -> HealthReport:
        raise self.error

    async def release(self, key: SessionKey) -> None:
        raise self.error

    async def cancel(self, key: SessionKey, reason: str) -> None:
        raise self.error

    async def serve_seam(self, seam: ServerSeam) -> None:
        raise self.error


class StubbornService(ScriptedService):
    """Never answers, and never returns by itself."""

    async def capability(self) -> Capability:
        await asyncio.Event().wait()
        return CAPABILITY

    async def serve_seam(self, seam: ServerSeam) -> None:
        self.serving += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.serving -= 1
            self.idle.set()
