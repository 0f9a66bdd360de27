"""Generations as one HTTP response: streamed or whole, and ended when nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from meshnet.domain.errors import CancelledError, InternalError, MeshnetError, NodeNotReadyError
from meshnet.gateway.access import Access
from meshnet.gateway.accounting import DONE, LEFT, Tally, end_of
from meshnet.gateway.door import failure_response
from meshnet.gateway.errors import failure_of
from meshnet.gateway.fair import Party
from meshnet.gateway.fanout import interleaved
from meshnet.gateway.flights import Flight, Flights
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.openai import Call
from meshnet.gateway.patience import patient
from meshnet.gateway.replies import JsonObject, Reply
from meshnet.gateway.requestlog import REQUEST_ID, log, log_failure
from meshnet.gateway.running import Running
from meshnet.gateway.timings import combined, timings_asked, timings_object
from meshnet.gateway.waiting import WaitingRoom
from meshnet.session.service import GenerationSummary, Recovered, TextDelta, TextRequest
from meshnet.tracker.apikeys import ApiKey
from meshnet.tracker.usage import UsageRecord

Event = TextDelta | GenerationSummary

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Some proxies collect an answer before they pass it on unless they are told.
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all answers of a gateway have in common."""

    figures: GatewayFigures
    running: Running
    flights: Flights
    access: Access
    rooms: Mapping[str, WaitingRoom]
    """By the models' own names."""
    stopping: asyncio.Event
    client_timeout_seconds: float


class Answer(Response):
    """Runs a call and sends what it yields.

    The generations are closed, which cancels their work on the nodes, when the client disconnects
    or takes nothing for ``client_timeout_seconds`` (both raise ``ClientDisconnect``), when
    ``stopping`` is set, and when ``running`` is told to end one of the answer's ids. An error
    before the first event of a stream has a status of its own; a later one ends the stream with
    an error event.
    """

    def __init__(self, call: Call, reply: Reply, caller: ApiKey, shared: Shared) -> None:
        super().__init__()
        self._caller = caller
        self._shared = shared
        self._tally = Tally(reply.reply_id, call)
        self._flight = Flight(
            reply.reply_id,
            call.model.name,
            sum(len(request.prompt) for request in call.requests[:: call.n]),
            len(call.requests),
        )
        self._call = call
        self._reply = reply
        self._streaming = False
        self._timed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and write down what it used, however it ends."""
        end = LEFT
        try:
            patient_send = patient(send, self._shared.client_timeout_seconds)
            end = await self._answer(scope, receive, patient_send)
        except BaseException as error:
            end = end_of(error)
            raise
        finally:
            # Last, for the client is to wait for no disk.
            record = self._tally.record(REQUEST_ID.get(), self._caller.key_id, end)
            if record is not None:
                await self._write_down(record)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> str:
        """Send while the answer is wanted, or an error; returns how it ended."""
        self._timed = timings_asked(scope)
        work = self._stream if self._call.stream else self._whole
        shared, owner = self._shared, self._caller.key_id
        try:
            with (
                shared.running.entered(owner, self._reply.reply_id, REQUEST_ID.get()) as cancelled,
                shared.flights.entered(self._flight),
            ):
                sending = work(scope, receive, send)
                await _while_wanted(sending, receive, shared.stopping, cancelled)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - it is told to the client, and logged
            failure = failure_of(error)
            log_failure(error, failure)
            if self._streaming:
                told = self._reply.frame(self._reply.error_payload(failure.body()))
                await _send_part(send, told, more=False)
            else:
                await failure_response(failure)(scope, receive, send)
            return end_of(error)
        return DONE

    async def _write_down(self, record: UsageRecord) -> None:
        try:
            await self._shared.access.spend(record)
        except MeshnetError as error:
            # The client has its answer; whoever reads the log can enter this by hand.
            log.error("%s; not written down: %s", error.message, record)

    async def _stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as events:
            async for index, event in events:
                if not self._streaming:
                    self._streaming = True
                    start = {"type": "http.response.start", "status": 200}
                    await send(start | {"headers": list(_STREAM_HEADERS)})
                    await self._send_chunks(send, self._reply.opening())
                chunks = self._reply.take(index, event)
                if self._reply.ended:
                    *chunks, last = [*chunks, *self._reply.closing()]
                    chunks.append(last | self._timings())
                await self._send_chunks(send, chunks)
        await _send_part(send, self._reply.end, more=False)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as events:
            async for index, event in events:
                self._reply.take(index, event)
        whole = self._reply.whole() | self._timings()
        await JSONResponse(whole)(scope, receive, send)

    def _timings(self) -> JsonObject:
        return timings_object(combined(self._reply.summaries)) if self._timed else {}

    async def _send_chunks(self, send: Send, chunks: Iterable[JsonObject]) -> None:
        for chunk in chunks:
            await _send_part(send, self._reply.frame(chunk), more=True)

    async def _events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """The generations' events by choice; one of each is a summary, or this raises."""
        party = Party(self._caller.key_id, self._caller.limits.weight)
        name = self._call.model.name
        room = self._shared.rooms[name]
        generations = []
        for index, request in enumerate(self._call.requests):
            watched = replace(self._tally.watched(index, request), on_recovery=self._recovered)
            events = room.admitted(party, watched, partial(self._generation, index))
            generations.append(self._shared.figures.watched(name, events))
        async with aclosing(interleaved(generations)) as told:
            async for item in told:
                yield item

    def _recovered(self, recovered: Recovered) -> None:
        self._shared.figures.recovered(self._call.model.name, recovered.pause_seconds)
        log.warning(
            "%s went on after %.2f s without a token, as session %s at %s with %d tokens computed "
            "once more: %s",
            self._reply.reply_id,
            recovered.pause_seconds,
            recovered.key,
            recovered.hops[0],
            recovered.replayed_tokens,
            recovered.lost,
        )

    async def _generation(self, index: int, request: TextRequest) -> AsyncGenerator[Event, None]:
        """One choice's events.

        They are taken to their end: closing the generation after its summary would cancel it.
        """
        ended = False
        model = self._call.model
        with self._flight.generating():
            async with aclosing(model.generate(request)) as generated:
                async for event in generated:
                    self._flight.take(event)
                    self._tally.take(index, event)
                    yield event
                    if isinstance(event, GenerationSummary):
                        ended = True
                        _log_summary(self._reply.reply_id, model.name, request, event)
        if not ended:
            raise InternalError("the generation ended without a summary")


async def _while_wanted(
    work: Coroutine[None, None, None],
    receive: Receive,
    stopping: asyncio.Event,
    cancelled: asyncio.Event,
) -> None:
    """Run ``work`` to its end, or cancel it when nobody wants it any more."""
    working = asyncio.create_task(work)
    tasks = (
        working,
        asyncio.create_task(_disconnection(receive)),
        asyncio.create_task(stopping.wait()),
        asyncio.create_task(cancelled.wait()),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not working.cancelled():
        working.result()
    elif stopping.is_set():
        raise NodeNotReadyError("the gateway is stopping; ask again when it is back")
    elif cancelled.is_set():
        raise CancelledError("the request was cancelled")
    else:
        raise ClientDisconnect("the client disconnected")


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_part(send: Send, part: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})


def _log_summary(
    reply_id: str, model: str, request: TextRequest, summary: GenerationSummary
) -> None:
    log.info(
        "%s of %s: %d tokens after %d of prompt, %s, first after %.3f s, all after %.3f s, seed %d",
        reply_id,
        model,
        summary.completion_tokens,
        summary.prompt_tokens,
        summary.finish_reason.value,
        summary.seconds_to_first_token,
        summary.seconds,
        request.sampling.seed,
    )
