"""Where generations wait for their turn when the nodes are full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.gateway.fair import FairQueue, Party, QueueBounds, Ticket
from meshnet.gateway.metrics import GatewayFigures
from meshnet.node.seats import LACKING, ROOM
from meshnet.session.service import GenerationSummary, Opened, TextDelta, TextRequest

Event = TextDelta | GenerationSummary

SHORTEST_PROBE_SECONDS = 0.02
"""After a generation has ended: how soon the nodes are asked again for room that they refused.
They free its place a little later than its end is known here."""
LONGEST_PROBE_SECONDS = 0.5
"""The wait doubles with each refusal up to this."""
LOOK_SECONDS = 0.5
"""How often one whose time is over looks whether others of its request still run."""
USUAL_TOKENS = 256
"""What an answer without a limit of its own is expected to have."""


@dataclass(slots=True)
class _Use:
    """What a generation has taken of the nodes."""

    request: TextRequest
    begun: bool = False
    tokens: int = 0
    """Of the prompt those that no kept cache stood for, and the answer's."""

    def watched(self) -> TextRequest:
        """The request, which now tells here too when the nodes let it in."""
        return replace(self.request, on_open=self._opened)

    def take(self, event: Event) -> None:
        """Count an event."""
        self._begin(0)
        if isinstance(event, TextDelta):
            self.tokens += len(event.tokens)

    def _opened(self, opened: Opened) -> None:
        self._begin(opened.cached_tokens)
        if self.request.on_open is not None:
            self.request.on_open(opened)

    def _begin(self, cached_tokens: int) -> None:
        """The prompt counts as soon as the nodes compute it, whether or not its sender stays."""
        if not self.begun:
            self.begun = True
            self.tokens = len(self.request.prompt) - cached_tokens


class WaitingRoom:
    """The generations of one model in one gateway. Belongs to its event loop.

    The nodes alone know whether they have room, for they may serve other gateways too. So a
    generation is tried, and one that they refuse to open for want of room waits here. An answer of
    sixteen choices so needs no sixteen sessions.
    """

    def __init__(self, model: str, bounds: QueueBounds, figures: GatewayFigures) -> None:
        self._model = model
        self._bounds = bounds
        self._figures = figures
        self._queue = FairQueue(bounds)
        self._turns: dict[Ticket, asyncio.Future[None]] = {}
        self._probe_seconds = SHORTEST_PROBE_SECONDS
        self._probe: asyncio.TimerHandle | None = None

    async def admitted(
        self,
        party: Party,
        request: TextRequest,
        generate: Callable[[TextRequest], AsyncGenerator[Event, None]],
    ) -> AsyncGenerator[Event, None]:
        """The events of a generation, begun when it is its turn and the nodes have room.

        ``generate`` gets the request to begin with. Raises ``ResourceExhaustedError``, which says
        when to come back, if too many wait or it waits too long, and whatever else the generation
        raises.
        """
        ticket = Ticket(party, len(request.prompt) + (request.max_new_tokens or USUAL_TOKENS))
        self._queue.join(ticket)
        use = _Use(request)
        joined = began = time.monotonic()
        try:
            while True:
                await self._turn(ticket, joined)
                began = time.monotonic()
                try:
                    async with aclosing(generate(use.watched())) as events:
                        async for event in events:
                            use.take(event)
                            yield event
                except ResourceExhaustedError as error:
                    if use.begun or error.details.get(LACKING) != ROOM:
                        raise
                    if not self._queue.refused(ticket):
                        raise self._queue.full(error.message) from error
                    self._probe_seconds = min(self._probe_seconds * 2, LONGEST_PROBE_SECONDS)
                else:
                    return
        finally:
            ended = time.monotonic()
            self._queue.leave(ticket, use.tokens, ended - began)
            if use.begun:
                party.served = ended
                self._probe_seconds = SHORTEST_PROBE_SECONDS
            self._serve()

    async def _turn(self, ticket: Ticket, joined: float) -> None:
        """Wait until it is the ticket's turn; all its turns together have the queue's seconds.

        They count from when it came, or from when one of its request's others ended after that:
        it waits for those as well, and they have deadlines.
        """
        party, seconds = ticket.party, self._bounds.seconds
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[ticket] = turn
        try:
            with self._figures.waits(self._model):
                self._serve()
                while not turn.done():
                    left = max(joined, party.served) + seconds - time.monotonic()
                    if left <= 0 and not party.running:
                        raise self._queue.full(f"this one waited {seconds:g} s")
                    await asyncio.wait((turn,), timeout=left if left > 0 else LOOK_SECONDS)
        finally:
            del self._turns[ticket]

    def _serve(self) -> None:
        """Give turns to whom they belong, and look again later if somebody is left."""
        while (ticket := self._queue.grant()) is not None:
            self._turns[ticket].set_result(None)
        if self._queue.waiting:
            self._probe_by(asyncio.get_running_loop().time() + self._probe_seconds)

    def _probe_by(self, when: float) -> None:
        """Ask the nodes again at that time of the loop's, unless that is done sooner anyway."""
        if self._probe is not None:
            if self._probe.when() <= when:
                return
            self._probe.cancel()
        self._probe = asyncio.get_running_loop().call_at(when, self._probe_room)

    def _probe_room(self) -> None:
        self._probe = None
        self._queue.probe()
        self._serve()
