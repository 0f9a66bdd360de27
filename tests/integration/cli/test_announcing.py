"""What `meshnet up` shows of pairing, and when it announces itself."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from meshnet.cli import announcing
from meshnet.cli.announcing import findable
from meshnet.domain.errors import NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.tracker.pairing_messages import CodeReply, CodeRequest
from meshnet.transport.discovery import Announced

HERE = Address("192.168.1.20:7700")


@dataclass
class Tracker:
    """A link to a tracker, and a network that hears what is announced."""

    fingerprint: str = "a" * 64
    codes: int = 0
    heard: list[Announced] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: NodeUnreachableError | None = None

    async def new_code(self, request: CodeRequest) -> CodeReply:
        self.codes += 1
        return CodeReply(code="7F4-K2Q", seconds=request.seconds, uses=request.uses)

    @asynccontextmanager
    async def announced(self, what: Announced):
        if self.trouble is not None:
            raise self.trouble
        self.heard.append(what)
        try:
            yield
        finally:
            self.ended.set()


@pytest.fixture
def tracker(monkeypatch):
    made = Tracker()
    monkeypatch.setattr(announcing, "announced", made.announced)
    return made


async def test_a_code_is_shown_and_the_tracker_announced_until_the_end(tracker, capsys):
    async with asyncio.timeout(5):
        async with findable(tracker, HERE, "home", announce=True):
            await asyncio.sleep(0)
            assert tracker.heard == [Announced("home", "a" * 64, (HERE,))]
            assert not tracker.ended.is_set()
        await tracker.ended.wait()
    shown = capsys.readouterr()
    expected = "meshnet join (code 7F4-K2Q, good for 10 min and 5 machines)"
    assert (expected in shown.err, shown.out) == (True, "")


async def test_who_does_not_announce_shows_where_to_pair(tracker, capsys):
    async with findable(tracker, HERE, "home", announce=False):
        await asyncio.sleep(0)
    assert tracker.heard == []
    assert "meshnet join --tracker 192.168.1.20:7700 (code 7F4-K2Q" in capsys.readouterr().err


async def test_on_loopback_nothing_is_announced_and_no_code_made(tracker, capsys):
    async with findable(tracker, Address("127.0.0.1:7700"), "home", announce=True):
        await asyncio.sleep(0)
    assert (tracker.heard, tracker.codes, capsys.readouterr().err) == ([], 0, "")


async def test_a_network_without_multicast_is_told_and_ends_nothing(tracker, capsys):
    tracker.trouble = NodeUnreachableError("no multicast here")
    async with findable(tracker, HERE, "home", announce=True):
        await asyncio.sleep(0.05)
    assert "won't find this machine: no multicast here" in " ".join(capsys.readouterr().err.split())
