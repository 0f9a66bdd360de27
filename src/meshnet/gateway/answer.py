"""One generation as an HTTP response: streamed or whole, and ended when nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from meshnet.domain.errors import InternalError, NodeNotReadyError
from meshnet.gateway.errors import failure_of
from meshnet.gateway.openai import Call
from meshnet.gateway.replies import DONE, JsonObject, Reply, sse
from meshnet.gateway.requestlog import log, log_failure
from meshnet.session.service import GenerationSummary, TextDelta

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Some proxies collect an answer before they pass it on unless they are told.
    (b"x-accel-buffering", b"no"),
)


class Answer(Response):
    """Runs a call and sends what it yields.

    The generation is closed, which cancels its work on the nodes, when the client disconnects or
    takes nothing for ``client_timeout_seconds`` (both raise ``ClientDisconnect``), and when
    ``stopping`` is set. An error before the first event is raised, so that it can have a status
    of its own; a later one ends the stream with an error event.
    """

    def __init__(
        self, call: Call, reply: Reply, *, stopping: asyncio.Event, client_timeout_seconds: float
    ) -> None:
        super().__init__()
        self._call = call
        self._reply = reply
        self._stopping = stopping
        self._client_timeout_seconds = client_timeout_seconds
        self._streaming = False

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

        work = self._stream if self._call.stream else self._whole
        try:
            await _while_wanted(work(scope, receive, patient_send), receive, self._stopping)
        except Exception as error:
            if not self._streaming or isinstance(error, ClientDisconnect):
                raise
            failure = failure_of(error)
            log_failure(error, failure)
            await _send_part(patient_send, sse(failure.body()), more=False)

    async def _stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as events:
            async for event in events:
                if not self._streaming:
                    self._streaming = True
                    start = {"type": "http.response.start", "status": 200}
                    await send(start | {"headers": list(_STREAM_HEADERS)})
                    await _send_chunks(send, self._reply.opening())
                if isinstance(event, GenerationSummary):
                    await _send_chunks(send, self._reply.closing(event))
                else:
                    await _send_chunks(send, self._reply.piece(event))
        await _send_part(send, DONE, more=False)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as running:
            events = [event async for event in running]
        deltas = [event for event in events if isinstance(event, TextDelta)]
        summary = next(event for event in events if isinstance(event, GenerationSummary))
        await JSONResponse(self._reply.whole(deltas, summary))(scope, receive, send)

    async def _events(self) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        """The generation's events; one of them is a summary, or this raises.

        They are taken to their end: closing the generation after its summary would cancel it.
        """
        ended = False
        async with aclosing(self._call.model.generate(self._call.request)) as generated:
            async for event in generated:
                yield event
                if isinstance(event, GenerationSummary):
                    ended = True
                    _log_summary(self._call, event)
        if not ended:
            raise InternalError("the generation ended without a summary")


async def _while_wanted(
    work: Coroutine[None, None, None], receive: Receive, stopping: asyncio.Event
) -> None:
    """Run ``work`` to its end, or cancel it when the client disconnects or the server stops."""
    working = asyncio.create_task(work)
    tasks = (
        working,
        asyncio.create_task(_disconnection(receive)),
        asyncio.create_task(stopping.wait()),
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
    else:
        raise ClientDisconnect("the client disconnected")


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_chunks(send: Send, chunks: Iterable[JsonObject]) -> None:
    for chunk in chunks:
        await _send_part(send, sse(chunk), more=True)


async def _send_part(send: Send, part: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})


def _log_summary(call: Call, summary: GenerationSummary) -> None:
    log.info(
        "%s: %d tokens after %d of prompt, %s, first after %.3f s, all after %.3f s, seed %d",
        call.model.name,
        summary.completion_tokens,
        summary.prompt_tokens,
        summary.finish_reason.value,
        summary.seconds_to_first_token,
        summary.seconds,
        call.request.sampling.seed,
    )
