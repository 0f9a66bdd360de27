"""The answers of a gateway as they are made: counted while they flow, remembered for a while."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect

from meshnet.domain.errors import CancelledError, MeshnetError
from meshnet.domain.status import StatusCode
from meshnet.gateway.machines import HopShare, RequestState, RequestView
from meshnet.session.service import GenerationSummary, TextDelta
from meshnet.session.timings import HopTimes, hop_times

KEPT = 24
"""Answers that are over and still shown."""


class Flight:
    """One answer under way: all its choices together."""

    def __init__(self, request_id: str, model: str, prompt_tokens: int, choices: int) -> None:
        self.request_id = request_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._choices = choices
        self._began_unix = time.time()
        self._began = time.monotonic()
        self._first: float | None = None
        self._summaries: list[GenerationSummary] = []
        self._generations = 0
        self.tokens = 0

    @contextmanager
    def generating(self) -> Iterator[None]:
        """While one of the choices is with the nodes rather than waiting for them."""
        self._generations += 1
        try:
            yield
        finally:
            self._generations -= 1

    def take(self, event: TextDelta | GenerationSummary) -> None:
        """Count an event of any of the choices."""
        if isinstance(event, GenerationSummary):
            self._summaries.append(event)
        elif event.tokens:
            if self._first is None:
                self._first = time.monotonic() - self._began
            self.tokens += len(event.tokens)

    def view(self, state: RequestState | None = None, end: str = "") -> RequestView:
        """The answer as it is now; without a state it is under way."""
        before = RequestState.PROMPT if self._generations else RequestState.WAITING
        flowing = before if self._first is None else RequestState.ANSWER
        hops = hop_times([hop for it in self._summaries for hop in it.timings])
        return RequestView(
            self.request_id,
            self._model,
            state or flowing,
            self._began_unix,
            time.monotonic() - self._began,
            self._prompt_tokens,
            self.tokens,
            self._first,
            self._choices,
            end,
            tuple(map(_share, hops)) if state is not None else (),
            exact=state is not None and bool(hops),
        )

    def finish_reason(self) -> str:
        """How the first choice that ended did."""
        return self._summaries[0].finish_reason.value if self._summaries else ""


class Flights:
    """All answers of one gateway. Belongs to its event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, Flight] = {}
        self._over: deque[RequestView] = deque(maxlen=KEPT)
        self._landed_tokens = 0

    @contextmanager
    def entered(self, flight: Flight) -> Iterator[Flight]:
        """Show an answer as under way, and afterwards how it ended."""
        self._under_way[flight.request_id] = flight
        state, end = RequestState.FAILED, StatusCode.INTERNAL.value
        try:
            yield flight
        except (CancelledError, ClientDisconnect, asyncio.CancelledError) as error:
            state = RequestState.CANCELLED
            end = "cancelled" if isinstance(error, CancelledError) else "left"
            raise
        except MeshnetError as error:
            end = error.code.value
            raise
        else:
            state, end = RequestState.DONE, flight.finish_reason()
        finally:
            del self._under_way[flight.request_id]
            self._landed_tokens += flight.tokens
            self._over.appendleft(flight.view(state, end))

    @property
    def tokens(self) -> int:
        """Tokens of all answers since the gateway started."""
        return self._landed_tokens + sum(it.tokens for it in self._under_way.values())

    def views(self) -> tuple[RequestView, ...]:
        """Those under way, oldest first, then those that are over, latest first."""
        return (*(flight.view() for flight in self._under_way.values()), *self._over)


def _share(hop: HopTimes) -> HopShare:
    return HopShare(
        hop.node,
        hop.layers,
        hop.prefill_start,
        hop.prefill.queue,
        hop.prefill.engine,
        hop.prefill.codec,
        hop.prefill.wait,
        hop.decode_steps,
        hop.decode.queue,
        hop.decode.engine,
        hop.decode.codec,
        hop.decode.wait,
    )
