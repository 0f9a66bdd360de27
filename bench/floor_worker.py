"""One process of a bare chain, for ``bench.floor``: libllama's steps and bytes, nothing else.

    python -m bench.floor_worker sockets|grpc MODEL START END CONTEXT LISTEN NEXT

Takes rows at LISTEN and sends what it makes of them to NEXT; the last process sends tokens to the
first. That one reads ``[prompt, count]`` in JSON on its standard input, generates greedily with a
row a step, and writes what ``bench.setup.Run`` holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import uvloop

from meshnet.cli.local import LocalModel, cut_model, node_config
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.domain.layers import LayerRange
from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.node.engine_thread import EngineThread
from meshnet.transport.address import parse_address

PLACE = struct.Struct("<ii")
"""A row's position, and on the way to the first process the token after it."""
READY_SECONDS = 60.0
METHOD = "/floor.Floor/Rows"


class Shard:
    """A slice's steps of one row."""

    def __init__(self, model: Path, layers: LayerRange, context_length: int) -> None:
        options = NodeOptions(1, 1, context_length, sessions=1)
        (cut,) = cut_model(LocalModel(model, ""), [layers], Settings.from_environment(), options)
        config = node_config(1, cut, options, "127.0.0.1:0", None)
        recipe = config.engine.recipe(config.chunk_tokens)  # type: ignore[union-attr]
        total = cut.total_layers
        request = LoadRequest(cut.path, layers.start, layers.end, total, recipe, config.limits)
        self._context = LlamaContext(request, max_outputs=1)
        self.is_head, self.is_tail = layers.start == 0, layers.end == total

    def step(self, frame: bytes) -> bytes:
        """A frame for the next process."""
        position, token = PLACE.unpack_from(frame)
        if position == 0:
            self._context.clear()
        values = None if self.is_head else np.frombuffer(frame, np.float32, offset=PLACE.size)
        tokens = (token,) if values is None else ()
        rows = None if values is None else values.reshape(1, -1)
        made = self._context.decode([Rows(0, position, tokens, rows, int(self.is_tail))])[0]
        if self.is_tail:
            return PLACE.pack(position, int(made.argmax()))
        row: bytes = made.tobytes()
        return PLACE.pack(position, 0) + row

    @property
    def frame_bytes(self) -> int:
        """Of what it takes."""
        return PLACE.size + (0 if self.is_head else 4 * self._context.n_embd)


Exchange = Callable[[bytes], Awaitable[bytes]]
"""Brings a frame through the whole chain: the first process's row, and the token after it."""


async def generate(exchange: Exchange, prompt: Sequence[int], count: int) -> dict[str, object]:
    """What a ``Run`` holds."""
    began, first, tokens = time.perf_counter(), 0.0, list[int]()
    for position in range(len(prompt) + count - 1):
        row = prompt[position] if position < len(prompt) else tokens[-1]
        _, token = PLACE.unpack(await exchange(PLACE.pack(position, row)))
        if position >= len(prompt) - 1:
            tokens.append(token)
        if position == len(prompt) - 1:
            first = time.perf_counter()
    return {"first": first - began, "rest": time.perf_counter() - first, "tokens": tokens}


def serve_prompts(run: Callable[[Sequence[int], int], dict[str, object]]) -> None:
    """Answer each line of the standard input."""
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)


def over_sockets(shard: Shard, listen: str, following: str) -> None:
    """Blocking sockets, one thread."""
    with socket.create_server(parse_address(listen, "listen")) as server:
        print("ready", flush=True)
        onward = _connected(parse_address(following, "next"))
        inward, _ = server.accept()
    for each in (onward, inward):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def received(size: int) -> bytes:
        data = inward.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise SystemExit(0)
        return data

    async def exchange(frame: bytes) -> bytes:
        onward.sendall(shard.step(frame))
        return received(PLACE.size)

    if shard.is_head:
        serve_prompts(lambda prompt, count: asyncio.run(generate(exchange, prompt, count)))
    while not shard.is_head:
        onward.sendall(shard.step(received(shard.frame_bytes)))


def _connected(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def over_grpc(shard: Shard, listen: str, following: str) -> None:
    """gRPC's streams on an event loop, and a thread for the steps, as a node has them."""
    loop, thread = asyncio.get_running_loop(), EngineThread()
    tokens: asyncio.Queue[bytes] = asyncio.Queue()
    stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    stream = grpc.aio.insecure_channel(following).stream_stream(METHOD)
    call = stream(wait_for_ready=True)

    async def computed(frame: bytes) -> bytes:
        made: asyncio.Future[bytes] = loop.create_future()

        def step() -> None:
            try:
                result = shard.step(frame)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                loop.call_soon_threadsafe(made.set_exception, error)
            else:
                loop.call_soon_threadsafe(made.set_result, result)

        thread.submit(step)
        return await made

    async def take(frames: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for frame in frames:
            if shard.is_head:
                tokens.put_nowait(frame)
            else:
                await call.write(await computed(frame))
        yield b""

    async def exchange(frame: bytes) -> bytes:
        await call.write(await computed(frame))
        return await tokens.get()

    server = grpc.aio.server()
    _, service, method = METHOD.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    handlers = {method: grpc.stream_stream_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(listen)
    await server.start()
    print("ready", flush=True)
    while shard.is_head and (line := await asyncio.to_thread(sys.stdin.readline)):
        print(json.dumps(await generate(exchange, *json.loads(line))), flush=True)
    await server.wait_for_termination()


def main() -> None:
    kind, model, start, end, context_length, listen, following = sys.argv[1:]
    shard = Shard(Path(model), LayerRange(int(start), int(end)), int(context_length))
    if kind == "sockets":
        over_sockets(shard, listen, following)
    else:
        uvloop.run(over_grpc(shard, listen, following))
    os._exit(0)


if __name__ == "__main__":
    main()
