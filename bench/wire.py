"""What does the wire cost?

    python -m bench.wire

Bytes of a decode step and of a 128-token chunk of width 4096, by type and packing. Then chains of
1, 2 and 4 node processes with the fixture engine, whose four layers take no time to speak of: the
time from one token to the next, which is a decode step's way through all nodes and back, and how
many steps a second a chain of two takes from 16 generations at once.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from bench.report import Cell, Column, Report, Table, conditions, finish, output_parser
from bench.setup import GREEDY, even_ranges, run
from meshnet.cli.local import local_nodes
from meshnet.domain.frames import ChunkInfo, DecodeFrame, DecodeStep, PrefillChunk
from meshnet.domain.ids import NodeId, SessionKey, new_route_session_id
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import FlowControl
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType
from meshnet.engine.base import EngineLimits
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.session.service import TextDelta, TextRequest
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport
from meshnet.wire.compression import Compression
from meshnet.wire.convert import encode_request
from meshnet.wire.narrow import tensor_of

NAME = "wire"
WIDTH, CHUNK, LAYERS, TOKENS, SESSIONS = 4096, 128, 4, 1000, 16


def sizes() -> list[tuple[Cell, ...]]:
    """Bytes on the wire by type and packing, and a decode step's bytes over its tensor."""
    draw = np.random.default_rng(0)
    key = SessionKey(new_route_session_id(), 0)
    exact = CacheExpectation(CacheMode.EXACT, 1000)
    lines: list[tuple[Cell, ...]] = []
    for dtype in DType:
        row = tensor_of(RESIDUAL, draw.normal(size=(1, WIDTH)).astype(np.float32), dtype)
        rows = tensor_of(RESIDUAL, draw.normal(size=(CHUNK, WIDTH)).astype(np.float32), dtype)
        step = len(encode_request(DecodeFrame((DecodeStep(9, 1000, 300, row),))))
        info = ChunkInfo(1, 4, CHUNK, 4 * CHUNK)
        chunk = PrefillChunk(9, key, info, 1000, 8, exact, BoundaryBundle((rows,)))
        packed = (len(encode_request(chunk, compression)) for compression in Compression)
        lines.append((dtype.value, step, step - len(row.data), *packed))
    return lines


@asynccontextmanager
async def fixture_chain(nodes: int) -> AsyncIterator[ChainModel]:
    """A model over node processes whose engine takes no time."""
    configs = [
        NodeConfig(
            NodeId(f"node-{number}"),
            layers.start,
            layers.end,
            LAYERS,
            FixtureEngineConfig(),
            limits=EngineLimits(context_length=2 * TOKENS, max_sessions=SESSIONS),
            flow=FlowControl(max_sessions=SESSIONS),
        )
        for number, layers in enumerate(even_ranges(LAYERS, nodes), start=1)
    ]
    async with local_nodes(configs) as (addresses, _):
        channels = ChannelPool(GrpcTransport())
        try:
            chain = await find_chain(channels, addresses)
            yield ChainModel("fixture", ByteTokenizer(), chain, channels)
        finally:
            await channels.close()


async def gaps(model: ChainModel, tokens: int) -> list[float]:
    """Milliseconds between a generation's tokens."""
    request = TextRequest((65, 66, 67), GREEDY, tokens, ignore_end=True)
    events = model.generate(request)
    times = [time.perf_counter() async for event in events if isinstance(event, TextDelta)]
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)]


def quantile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the values don't exceed."""
    return statistics.quantiles(values, n=100)[percent - 1]


async def steps(nodes: int) -> tuple[Cell, ...]:
    """A line: how long a decode step takes through that many nodes and back."""
    async with fixture_chain(nodes) as model:
        await gaps(model, 100)
        measured = await gaps(model, TOKENS)
    p50, p99 = quantile(measured, 50), quantile(measured, 99)
    return (nodes, p50, p99, p50 / nodes)


async def steps_a_second() -> float:
    """Steps a second that each of two nodes takes from many generations at once."""
    async with fixture_chain(2) as model:
        started = time.perf_counter()
        counts = await asyncio.gather(*(gaps(model, TOKENS // 4) for _ in range(SESSIONS)))
        return sum(map(len, counts)) / (time.perf_counter() - started)


async def main(options: argparse.Namespace) -> None:
    chunks = (Column(f"chunk, {compression.value}") for compression in Compression)
    size_columns = (Column("type"), Column("decode step"), Column("over its tensor"), *chunks)
    step_columns = (
        Column("nodes"),
        *(Column(f"{word}, ms", 2) for word in ("p50", "p99", "p50 a node")),
    )
    lines = [await steps(nodes) for nodes in (1, 2, 4)]
    rate = await steps_a_second()
    tables = (
        Table(f"Bytes, width {WIDTH}; a chunk has {CHUNK} tokens:", size_columns, tuple(sizes())),
        Table("A decode step through all nodes and back:", step_columns, tuple(lines)),
        Table(
            f"{SESSIONS} generations at once through 2 nodes:",
            (Column("steps/s a node", 0),),
            ((rate,),),
        ),
    )
    finish(Report(NAME, (conditions("bench.wire"),), tables), options)


if __name__ == "__main__":
    run(main(output_parser(NAME, __doc__).parse_args()))
