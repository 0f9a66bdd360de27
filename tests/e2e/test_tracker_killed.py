"""A tracker that is killed while it is needed: what is under way goes on, and nothing is lost."""

import asyncio
import itertools
import json
import logging
import os
import signal
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from meshnet.cli.logfiles import newest
from tests.support.commands import Command
from tests.support.live_cluster import START_SECONDS, Cluster, free_port, ran

pytestmark = pytest.mark.slow

LOGGER = logging.getLogger(__name__)

STREAMS = 8
TOKENS = 250
AROUND_SECONDS = 3.0
"""After the tracker's end; another one is there by then."""
LONGEST_GAP = 5.0
"""Between two tokens of a stream, in seconds, on a machine that starts a process meanwhile."""


@dataclass
class Stream:
    """One answer as it comes."""

    text: str = ""
    times: list[float] = field(default_factory=list)
    finish: str | None = None

    async def read(self, url: str) -> None:
        question = {"model": "tiny", "prompt": "h", "temperature": 0, "stream": True}
        question |= {"max_tokens": TOKENS}
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=question) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))

    def gap(self, moment: float | None = None) -> float:
        """The longest wait for a token; of those around a moment, if one is given."""
        waits = [
            after - before
            for before, after in itertools.pairwise(self.times)
            if moment is None or (after > moment and before < moment + AROUND_SECONDS)
        ]
        return max(waits, default=0.0)

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        choice = event["choices"][0]
        self.times.append(time.monotonic())
        self.text += choice["text"]
        self.finish = choice["finish_reason"] or self.finish


def tracker_of(first: Command) -> psutil.Process:
    """The process that is the tracker, of those that `up` has started for it."""
    return next(
        it for it in first.workers() if any("cluster.db" in file.path for file in it.open_files())
    )


def kill_tracker(first: Command) -> int:
    """Its process id."""
    killed = tracker_of(first).pid
    os.kill(killed, signal.SIGKILL)
    return killed


async def ready_machines(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The machines, once the tracker is there and knows that all are ready."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            ended = await ran("status", "--json", env=cluster.env("first"))
            if not ended.status:
                machines = {it["name"]: it for it in json.loads(ended.out)["machines"]}
                if {it["state"] for it in machines.values()} == {"ready"}:
                    return machines


async def streams(url: str) -> list[Stream]:
    """So many answers at once, to their ends."""
    made = [Stream() for _ in range(STREAMS)]
    async with asyncio.TaskGroup() as group:
        for each in made:
            group.create_task(each.read(url))
    return made


def seconds_away(state: Path) -> float:
    """Between a tracker's end and the next one's beginning, as the log has it."""
    told = {line.text: line.at for line in newest(state, 0, 1000) if "the tracker" in line.text}
    ended = next(at for text, at in told.items() if "is started again" in text)
    return (told["the tracker runs again"] - ended) / 1e6


def ledger(state: Path) -> tuple[list[tuple[str, int]], int]:
    """Every entry with the sum of its postings, and how many answers there are."""
    with closing(sqlite3.connect(state / "accounts.db")) as database:
        sums = database.execute(
            "SELECT entry_id, SUM(amount) FROM ledger_postings GROUP BY entry_id"
        )
        answers = database.execute("SELECT COUNT(*) FROM usage_answers").fetchone()
        return sums.fetchall(), answers[0]


@pytest.mark.timeout(400)
async def test_a_tracker_killed_during_eight_streams_breaks_none_and_the_ledger_balances(
    tmp_path, tiny
):
    cluster = Cluster(tmp_path, tiny, free_port())
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.up())
        for name in ("second", "third"):
            await stack.enter_async_context(cluster.joined(name))
        short = await cluster.answer()
        undisturbed = await streams(cluster.url)
        before = await ready_machines(cluster)
        state = Path(cluster.env("first")["MESHNET_STATE"])
        _, answers = ledger(state)

        disturbed = asyncio.create_task(streams(cluster.url))
        await asyncio.sleep(0.5)
        killed, killed_at = kill_tracker(first), time.monotonic()
        made = await disturbed
        assert tracker_of(first).pid != killed
        gaps = sorted(each.gap(killed_at) for each in made)
        usual = max(each.gap() for each in undisturbed)
        LOGGER.info(
            "the tracker was back after %.2f s; longest gaps of the streams %s, undisturbed %.2f s",
            seconds_away(state),
            ", ".join(f"{gap:.2f}" for gap in gaps),
            usual,
        )

        assert [each.text for each in made] == [undisturbed[0].text] * STREAMS
        assert {each.finish for each in made} == {"length"}
        assert gaps[-1] < LONGEST_GAP
        assert min(each.times[-1] for each in made) > killed_at, "they were over before"

        after = await ready_machines(cluster)
        assert {name: it["told"] for name, it in after.items()} == {
            name: it["told"] for name, it in before.items()
        }
        # Who comes while there is no tracker is answered over the chain that it named last.
        kill_tracker(first)
        response = await cluster.ask()
        assert (response.status_code, response.json()["choices"][0]["text"]) == (200, short)
        await ready_machines(cluster)

        entries, total = ledger(state)
        assert total == answers + STREAMS + 1
        assert [entry for entry, amount in entries if amount] == []
        assert len({entry for entry, _ in entries}) == len(entries)
