"""Many clients at once, many of whom leave or cancel: what do they see, and what is left behind?

    python -m bench.clients [--model smollm2|gemma3|FILE] [--clients 64] [--seconds 180]

``meshnet serve`` over two nodes, asked over HTTP. Answers are streamed or whole, of one choice, of
two, or JSON by a schema. A client reads to the end, stops reading and disconnects, ends its request
by its id, or gives up after a moment. Spans of gateway and nodes tell how long a node worked on for
somebody who had left; in the end no process may hold more than after the first seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from bench.collector import Collector, collector
from bench.crowd import ANSWER_SECONDS, FATES, Crowd, Ending, polled
from bench.gateway import MODEL, gateway
from bench.load import percentile
from bench.report import Column, Report, Table, conditions, done, finish, output_parser, progress
from bench.setup import model_path, run

NAME = "clients"
NODES = 2
WARM_SECONDS = 20.0
IDLE_SECONDS = 30.0
GROWTH = 1.15
"""A process may end with so many times the memory it had after the first seconds."""
SLACK_BYTES = 16 * 2**20
SPAN_SECONDS = 2.0
"""Spans leave a process after half a second at most."""
STORM_TOKENS = 400
OUTCOMES = ("answered", "left", "cancelled", "429", "503")
PROMPTS = (
    "Why is the sky blue?",
    "Name three colours.",
    "What is the capital of Australia?",
    "Write a short poem about rain.",
    "请用中文介绍一下北京。",
    "Count from one to twenty.",
    "Give me a recipe for pancakes. " * 6,
    "Explain recursion to a child.",
)
_SAMPLE = re.compile(r"^(meshnet_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """A gateway that serves, and its process."""

    http: httpx.AsyncClient
    pid: int

    async def figures(self) -> dict[str, float]:
        """The metrics' values by name, summed over labels."""
        found: dict[str, float] = {}
        for name, value in _SAMPLE.findall((await self.http.get("/metrics")).text):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    async def held(self) -> tuple[float, float]:
        """Sessions and queued steps of all nodes with what waits here; and KV positions."""
        now = await self.figures()
        names = ("meshnet_node_open_sessions", "meshnet_node_queued_steps")
        work = sum(now[name] for name in names) + now.get("meshnet_gateway_waiting", 0.0)
        # One is the request for the figures.
        work += max(now["meshnet_gateway_requests_in_flight"] - 1, 0.0)
        return work, now["meshnet_node_kv_positions_used"]

    async def idle(self) -> float:
        """Wait until nothing is under way; the KV positions that kept prefixes have."""

        async def nothing() -> bool:
            return (await self.held())[0] == 0

        await polled(nothing, IDLE_SECONDS, 0.1)
        now = await self.figures()
        if not now["meshnet_node_kept_prefixes"] and now["meshnet_node_kv_positions_used"]:
            raise SystemExit("no prefix is kept, but KV positions are used")
        return now["meshnet_node_kv_positions_used"]


@asynccontextmanager
async def served(path: Path, asked: argparse.Namespace, otlp: str) -> AsyncIterator[Server]:
    """``meshnet serve`` as a user starts it."""
    options = ["--nodes", str(NODES), "--threads", "1", "--ctx", "1024"]
    options += ["--sessions", str(asked.sessions), "--queue", str(asked.queue), "--otlp", otlp]
    limits = httpx.Limits(max_connections=2 * asked.clients + 32)
    async with (
        gateway(path, *options) as (url, running),
        httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as client,
    ):
        yield Server(client, running.popen.pid)


@dataclass(frozen=True, slots=True)
class Used:
    """What the processes of one role hold."""

    resident: int
    threads: int
    files: int


def used(pid: int) -> dict[str, Used]:
    """By role: the gateway, each node, and all processes that follow grammars."""
    gateway = psutil.Process(pid)
    nodes: list[psutil.Process] = []
    grammars: list[psutil.Process] = []
    for child in gateway.children(recursive=True):
        kind = grammars if "grammar_child" in " ".join(child.cmdline()) else nodes
        kind.append(child)
    held = {"gateway": [gateway]}
    held |= {f"node {n}": [it] for n, it in enumerate(sorted(nodes, key=lambda p: p.pid), 1)}
    held["grammars"] = grammars
    return {role: _used(each) for role, each in held.items()}


def _used(processes: Sequence[psutil.Process]) -> Used:
    resident = sum(each.memory_info().rss for each in processes)
    threads = sum(each.num_threads() for each in processes)
    return Used(resident, threads, sum(each.num_fds() for each in processes))


def until_over(endings: Sequence[Ending], spans: Collector) -> dict[str, list[float]]:
    """How long, in ms, until the last node's session was over, by what it is counted from."""
    shards: dict[str, int] = {}
    for span in spans.named("meshnet.shard"):
        shards[span.trace_id] = max(shards.get(span.trace_id, 0), span.ended)
    heard = {span.trace_id: span.began for span in spans.spans if span.name.startswith("DELETE ")}
    found: dict[str, list[float]] = {}
    for each in endings:
        over = shards.get(each.trace_id)
        if over is None or over < each.at:
            # It waited for its turn, or had ended by itself.
            continue
        found.setdefault(f"the client's {each.how}", []).append((over - each.at) / 1e6)
        if each.told in heard:
            since = (over - heard[each.told]) / 1e6
            found.setdefault("the gateway's knowing", []).append(max(since, 0.0))
    return found


async def storm(server: Server, sessions: int) -> tuple[float, int]:
    """All of the nodes' sessions at once lose their clients; seconds until no node holds any."""
    base = await server.idle()
    body = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": STORM_TOKENS,
        "stream": True,
        "logit_bias": {"0": -100, "2": -100},
    }
    began = asyncio.Semaphore(0)

    async def read() -> None:
        async with server.http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                began.release()

    readers = [asyncio.create_task(read()) for _ in range(sessions)]
    async with asyncio.timeout(ANSWER_SECONDS):
        for _ in range(4 * sessions):
            await began.acquire()
    for reader in readers:
        reader.cancel()

    async def nothing() -> bool:
        work, positions = await server.held()
        return work == 0 and positions <= base

    took = await polled(nothing, IDLE_SECONDS)
    await asyncio.wait(readers)
    return took


def seen_table(crowd: Crowd, seconds: float) -> Table:
    """What clients saw."""
    rows: list[tuple[str | int | float, ...]] = []
    for fate in sorted(set(FATES)):
        own = {outcome: n for (whose, outcome), n in crowd.seen.items() if whose == fate}
        other = sum(n for outcome, n in own.items() if outcome not in OUTCOMES)
        rows.append((fate, sum(own.values()), *(own.get(it, 0) for it in OUTCOMES), other))
    total = [sum(int(row[at]) for row in rows) for at in range(1, len(rows[0]))]
    rows.append(("all", *total))
    columns = ("", "requests", "answered", "left", "cancelled", "429", "503", "anything else")
    caption = f"What clients saw, {seconds:g} s:"
    return Table(caption, tuple(map(Column, columns)), tuple(rows))


def cancel_table(
    times: dict[str, list[float]], storms: Sequence[tuple[float, int]], sessions: int
) -> Table:
    """From a cancel to the end of the work."""
    rows: list[tuple[str | int | float, ...]] = [
        (f"session over on every node, from {since}", len(ms), *_spread(ms))
        for since, ms in sorted(times.items())
        if len(ms) > 1
    ]
    took = [seconds * 1e3 for seconds, _ in storms]
    if len(took) > 1:
        what = f"no session and no KV left of {sessions} disconnected at once"
        rows.append((what, len(took), *_spread(took)))
    columns = (Column(""), Column("times"), Column("p50, ms"), Column("p99, ms"), Column("max, ms"))
    return Table("From a cancel to the end of its work:", columns, tuple(rows))


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return percentile(values, 50), percentile(values, 99), max(values)


def leak_table(before: dict[str, Used], after: dict[str, Used]) -> Table:
    """What the processes hold."""
    columns = ("", "MiB", "MiB at last", "threads", "at last", "open files", "at last")
    rows = tuple(
        (
            role,
            old.resident / 2**20,
            after[role].resident / 2**20,
            old.threads,
            after[role].threads,
            old.files,
            after[role].files,
        )
        for role, old in before.items()
    )
    return Table(
        "Idle after the first seconds, and idle at last:", tuple(map(Column, columns)), rows
    )


def leaks(before: dict[str, Used], after: dict[str, Used]) -> list[str]:
    """What grew beyond its bounds."""
    grown = []
    for role, old in before.items():
        now = after[role]
        if now.resident > old.resident * GROWTH + SLACK_BYTES:
            grown.append(f"{role} has {(now.resident - old.resident) / 2**20:.0f} MiB more")
        if now.threads > old.threads + 4:
            grown.append(f"{role} has {now.threads} threads where it had {old.threads}")
        if now.files > old.files + 8:
            grown.append(f"{role} has {now.files} open files where it had {old.files}")
    return grown


async def measure(asked: argparse.Namespace) -> tuple[Report, list[str]]:
    """Run it all; the report, and what is wrong."""
    path = model_path(asked.model)
    warm = min(WARM_SECONDS, asked.seconds / 2)
    with collector() as spans:
        async with served(path, asked, spans.url) as server:
            crowd = Crowd(server.http, MODEL, PROMPTS)
            progress("each prompt alone")
            await crowd.learn()
            progress(f"{asked.clients} clients, {warm:g} s before anything is counted")
            await crowd.run(warm, asked.clients)
            await server.idle()
            before = used(server.pid)
            crowd.seen.clear()
            crowd.endings.clear()
            progress(f"{asked.clients} clients, {asked.seconds:g} s")
            await crowd.run(asked.seconds, asked.clients)
            await server.idle()
            await asyncio.sleep(SPAN_SECONDS)
            after = used(server.pid)
            times = until_over(crowd.endings, spans)
            storms = []
            for number in range(asked.storms):
                progress(f"all leave at once: {number + 1} of {asked.storms}")
                storms.append(await storm(server, asked.sessions))
    done()
    polls = [seconds / count * 1e3 for seconds, count in storms]
    lines = [
        conditions(f"bench.{NAME}"),
        f"{path.name} over {NODES} nodes of 1 thread, {asked.sessions} sessions,"
        f" {asked.clients} clients; up to {asked.queue} requests wait.",
        "The ends of sessions are those of the nodes' own spans; the last row is polled"
        f" every {percentile(polls, 50):.0f} ms."
        if len(polls) > 1
        else "",
    ]
    tables = (
        seen_table(crowd, asked.seconds),
        cancel_table(times, storms, asked.sessions),
        leak_table(before, after),
    )
    return Report(NAME, tuple(filter(None, lines)), tables), [
        *crowd.faults,
        *leaks(before, after),
    ]


async def main(asked: argparse.Namespace) -> None:
    """Measure, print, and fail if anything was wrong."""
    report, wrong = await measure(asked)
    finish(report, asked)
    for fault in wrong[:20]:
        print(fault, file=sys.stderr)
    if wrong:
        raise SystemExit(f"{len(wrong)} faults")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = output_parser(NAME, __doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, or a GGUF file")
    parser.add_argument("--clients", type=int, default=64, help="at once")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--sessions", type=int, default=8, help="that the nodes serve at once")
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait")
    parser.add_argument("--storms", type=int, default=10, help="times that all leave at once")
    return parser.parse_args()


if __name__ == "__main__":
    run(main(arguments()))
