"""Chains from a tracker in another process, and from memory while that process isn't there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from meshnet.domain.errors import MeshnetError, NodeNotReadyError
from meshnet.domain.ids import Digest
from meshnet.domain.nodes import Hop
from meshnet.tracker.asking import RouteReply, RouteRequest
from meshnet.tracker.lastroutes import Hops, LastRoutes, Outcomes
from meshnet.tracker.measurements import RunReport

LOGGER: Final = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 1.0
"""How long a tracker on the same machine may take to name a chain."""
AWAY_SECONDS: Final = 0.5
"""After a question that wasn't answered, chains come from memory at once."""
TELL_SECONDS: Final = 0.5
"""How soon outcomes are told when no question for a chain takes them along."""


class Timed(Protocol):
    """What is told of a generation's times."""

    @property
    def prompt_tokens(self) -> int:
        """Of its prompt."""

    @property
    def cached_tokens(self) -> int:
        """Of these, those that needn't be computed."""

    @property
    def completion_tokens(self) -> int:
        """Generated."""

    @property
    def seconds_to_first_token(self) -> float:
        """From its start."""

    @property
    def seconds(self) -> float:
        """From its start to its end."""


class Tracker(Protocol):
    """Who is asked; raises any ``MeshnetError``."""

    async def route(self, request: RouteRequest) -> RouteReply:
        """A chain for the next generation."""


class Vitals(Protocol):
    """What is known of the tracker's process."""

    def is_away(self) -> bool:
        """Whether it doesn't serve now."""

    def is_settling(self) -> bool:
        """Whether it was started again so lately that machines may not have spoken to it yet."""


class RemoteRoutes:
    """All models' chains. Belongs to one event loop; :meth:`tell` must run beside it."""

    def __init__(
        self, tracker: Tracker, vitals: Vitals, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tracker = tracker
        self._vitals = vitals
        self._clock = clock
        self._last = LastRoutes()
        self._outcomes = Outcomes()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._ask_again_at = 0.0

    def of(self, digest: Digest) -> ModelRoutes:
        """One model's chains."""
        return ModelRoutes(self, digest)

    async def route(self, digest: Digest) -> Hops:
        """The hops of the next generation; raises ``NodeNotReadyError``.

        One question at a time: who gets a chain has it counted before the next one is chosen.
        """
        async with self._turn:
            return await self._next(digest)

    def note(self, kind: str, node_ids: Sequence[str]) -> None:
        """Tell the tracker, with the next question or soon, what became of a chain."""
        if kind == "erred":
            for node_id in node_ids:
                self._last.erred(node_id)
        self._outcomes.note(kind, node_ids)
        self._news.set()

    def ran(self, run: RunReport) -> None:
        """Tell the tracker how long a generation took."""
        self._outcomes.ran(run)
        self._news.set()

    async def tell(self) -> None:
        """Tell outcomes that no question took along, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(TELL_SECONDS)
            self._news.clear()
            async with self._turn:
                if self._outcomes and await self._ask(None) is None:
                    self._news.set()

    async def _next(self, digest: Digest) -> Hops:
        reply = await self._ask(digest)
        if reply is not None and reply.hops:
            hops = tuple(each.hop() for each in reply.hops)
            self._last.named(digest, hops)
            return hops
        if reply is not None and not self._vitals.is_settling():
            self._last.none(digest)
            raise NodeNotReadyError(reply.problem)
        hops = self._last.of(digest) or ()
        if not hops:
            raise NodeNotReadyError(
                "the tracker isn't there just now" if reply is None else reply.problem
            )
        return hops

    async def _ask(self, digest: Digest | None) -> RouteReply | None:
        """The tracker's answer; None if there is none now."""
        if self._vitals.is_away() or self._clock() < self._ask_again_at:
            return None
        request = self._outcomes.told(digest)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._tracker.route(request)
        except (MeshnetError, TimeoutError) as error:
            why = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
            LOGGER.info("the tracker names no chain: %s", why)
            self._outcomes.untold(request)
            self._ask_again_at = self._clock() + AWAY_SECONDS
            return None
        except BaseException:
            self._outcomes.untold(request)
            raise


class ModelRoutes:
    """One model's chains; it fulfils the session's ``Routes``."""

    def __init__(self, routes: RemoteRoutes, digest: Digest) -> None:
        self._routes = routes
        self._digest = digest

    async def route(self) -> Hops:
        """The hops of the next generation; raises ``NodeNotReadyError`` naming missing layers."""
        return await self._routes.route(self._digest)

    def took(self, hops: Sequence[Hop]) -> None:
        """A generation begins on these nodes."""
        self._routes.note("took", [hop.node_id for hop in hops])

    def worked(self, hops: Sequence[Hop]) -> None:
        """A generation came to its end on these nodes."""
        self._routes.note("worked", [hop.node_id for hop in hops])

    def erred(self, node_id: str) -> None:
        """A generation failed by this node."""
        self._routes.note("erred", [node_id])

    def timed(self, hops: Sequence[Hop], run: Timed) -> None:
        """How long a generation over these nodes took."""
        self._routes.ran(
            RunReport(
                model=self._digest,
                nodes=tuple(hop.node_id for hop in hops),
                prompt_tokens=run.prompt_tokens,
                cached_tokens=run.cached_tokens,
                tokens=run.completion_tokens,
                first_seconds=run.seconds_to_first_token,
                rest_seconds=max(run.seconds - run.seconds_to_first_token, 0.0),
            )
        )
