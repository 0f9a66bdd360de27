"""`meshnet up` that is over, however it ended: nothing of what it started goes on."""

import signal
from collections import Counter
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.support.commands import Command, until
from tests.support.live_cluster import QUESTION, START_SECONDS, Cluster, free_port

pytestmark = pytest.mark.slow

GONE_SECONDS = 5.0
ALL = {
    "meshnet.cli.tracker_process": 2,
    "meshnet.cli.worker": 1,
    "meshnet.engine.llamacpp.grammar_child": 1,
}
"""A tracker and its spare, a worker, and what follows grammars, by their modules."""


def modules(first: Command) -> Counter[str]:
    """What runs below the command, by module; some of it may have children of its own."""
    found: Counter[str] = Counter()
    for process in first.workers():
        with suppress(psutil.NoSuchProcess):
            found.update(word for word in process.cmdline() if word in ALL)
    return found


@pytest.mark.parametrize(
    ("blow", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)]
)
@pytest.mark.timeout(240)
async def test_nothing_outlives_up(tmp_path, tiny, blow, status):
    cluster = Cluster(tmp_path, tiny, free_port())
    async with cluster.up("--memory", "2GiB") as first:
        await cluster.answer()
        async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
            asked = await client.post(
                "/v1/completions", json=QUESTION | {"grammar": 'root ::= "h"*'}
            )
        assert asked.status_code == 200, asked.text
        await until(lambda: all(modules(first)[it] >= ALL[it] for it in ALL), START_SECONDS)

        first.process.send_signal(blow)
        assert await first.process.wait() == status
        await until(lambda: not first.left(), GONE_SECONDS)
