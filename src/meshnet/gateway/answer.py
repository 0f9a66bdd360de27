"""Generations as one HTTP response: streamed or whole, and ended when nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import aclosing
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from meshnet.domain.errors import CancelledError, InternalError, NodeNotReadyError
from meshnet.gateway.errors import failure_of
from meshnet.gateway.fanout import interleaved
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.openai import Call
from meshnet.gateway.replies import JsonObject, Reply
from meshnet.gateway.requestlog import REQUEST_ID, log, log_failure
from meshnet.gateway.running import Running
from meshnet.gateway.siblings import Siblings
from meshnet.gateway.timings import combined, timings_asked, timings_object
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest

Event = TextDelta | GenerationSummary

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Some proxies collect an answer before they pass it on unless they are told.
    (b"x-accel-buffering", b"no"),
)


class Answer(Response):
    """Runs a call and sends what it yields.

    The generations are closed, which cancels their work on the nodes, when the client disconnects
    or takes nothing for ``client_timeout_seconds`` (both raise ``ClientDisconnect``), when
    ``stopping`` is set, and when ``running`` is told to end one of the answer's ids. An error
    before the first event is raised, so that it can have a status of its own; a later one ends
    the stream with an error event.
    """

    def __init__(
        self,
        call: Call,
        reply: Reply,
        figures: GatewayFigures,
        *,
        running: Running,
        stopping: asyncio.Event,
        client_timeout_seconds: float,
    ) -> None:
        super().__init__()
        self._running = running
        self._figures = figures
        self._call = call
        self._reply = reply
        self._stopping = stopping
        self._client_timeout_seconds = client_timeout_seconds
        self._streaming = False
        self._timed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""

        async def patient_send(message: Message) -> None:
            try:
                async with asyncio.timeout(self._client_timeout_seconds):
                    await send(message)
            except TimeoutError as error:
                raise ClientDisconnect(
                    f"the client took nothing for {self._client_timeout_seconds:g} s"
                ) from error

        self._timed = timings_asked(scope)
        work = self._stream if self._call.stream else self._whole
        try:
            with self._running.entered(self._reply.reply_id, REQUEST_ID.get()) as cancelled:
                sending = work(scope, receive, patient_send)
                await _while_wanted(sending, receive, self._stopping, cancelled)
        except Exception as error:
            if not self._streaming or isinstance(error, ClientDisconnect):
                raise
            failure = failure_of(error)
            log_failure(error, failure)
            told = self._reply.frame(self._reply.error_payload(failure.body()))
            await _send_part(patient_send, told, more=False)

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
        siblings = Siblings()
        generations = [
            siblings.admitted(partial(self._generation, request)) for request in self._call.requests
        ]
        async with aclosing(interleaved(generations)) as events:
            async for item in events:
                yield item

    async def _generation(self, request: TextRequest) -> AsyncGenerator[Event, None]:
        """One choice's events.

        They are taken to their end: closing the generation after its summary would cancel it.
        """
        ended = False
        model = self._call.model
        watched = self._figures.watched(model.name, model.generate(request))
        async with aclosing(watched) as generated:
            async for event in generated:
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
