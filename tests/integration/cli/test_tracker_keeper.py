"""The tracker as a process of its own: killed, started again, and refused where it must be."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from meshnet.cli import tracker_keeper
from meshnet.cli.cluster import Membership, StateFolder
from meshnet.cli.tracker_keeper import TrackerKeeper, tracker_kept
from meshnet.cli.tracker_link import TrackerLink, tracker_linked
from meshnet.cli.tracker_process import TrackerConfig
from meshnet.cli.tracking import OfferedModel
from meshnet.domain.errors import InvalidArgumentError, NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.gateway.server import open_listener
from meshnet.tracker import messages as msg
from tests.support.trackers import OFFER


@asynccontextmanager
async def kept(state: Path) -> AsyncIterator[tuple[TrackerKeeper, TrackerLink]]:
    """A tracker's process with a state folder, and the way to it."""
    with open_listener("127.0.0.1", 0) as listener:
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
        offered = OfferedModel(OFFER, b"{}", (state / "m.gguf",))
        member = Membership(tracker=address, cluster="test", name="first")
        config = TrackerConfig(state, member, (offered,), None)
        async with (
            tracker_kept(config, listener) as (keeper, began),
            tracker_linked(keeper, address, StateFolder(state)) as link,
        ):
            assert began.node_problem == ""
            yield keeper, link


async def asked(link: TrackerLink) -> msg.StatusReply:
    """What the tracker says, as soon as it is there."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return await link.status()
            except NodeUnreachableError:
                await asyncio.sleep(0.02)


def children() -> set[int]:
    """Processes of this one, which other tests may have left to be reaped too."""
    return {it.pid for it in psutil.Process().children()}


async def test_a_killed_tracker_is_back_on_the_same_socket_and_knows_what_it_knew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_keeper, "SPARE_SECONDS", 0.0)
    others = children()
    async with kept(tmp_path) as (keeper, link):
        started: set[int] = set()
        async with asyncio.timeout(10.0):
            while len(started) < 2:
                await asyncio.sleep(0.01)
                started = children() - others
        before, line = await asked(link), await link.join_line()
        killed = keeper.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        after = await asked(link)
        assert keeper.pid in started - {killed}, "it waited for that"
        assert (after.cluster, [it.name for it in after.machines]) == ("test", ["first"])
        assert len(after.tokens) == len(before.tokens) + 1, "the token of the line is still good"
        assert line.startswith("meshnet join mesh1_")
        assert keeper.is_settling()
        with pytest.raises(InvalidArgumentError, match="another `meshnet up` uses"):
            async with kept(tmp_path):
                pass
        started |= children() - others
    assert not [pid for pid in started if psutil.pid_exists(pid)]
    assert "the tracker was killed (SIGKILL); it is started again" in capsys.readouterr().err
