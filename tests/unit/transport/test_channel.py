"""One stream, many sessions: whatever ends it, every session hears, and later senders know.

And a pool of them, which remembers no address for longer than it is of use.
"""

import asyncio

import pytest

from meshnet.domain.errors import (
    MalformedFrameError,
    MeshnetError,
    NodeLostError,
    NodeUnreachableError,
)
from meshnet.domain.frames import Release, SeamReply, SeamRequest, SessionReleased
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.transport import channel as channel_module
from meshnet.transport.base import ClientSeam, Peer, Transport
from meshnet.transport.channel import ChannelPool, SeamChannel


class ScriptedSeam(ClientSeam):
    """Gives out what the test puts in: replies, and the error it ends with."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[SeamReply | MeshnetError] = asyncio.Queue()
        self.sent: list[SeamRequest] = []
        self.closed = False

    def send(self, request: SeamRequest) -> None:
        self.sent.append(request)

    async def receive(self) -> SeamReply:
        reply = await self.replies.get()
        if isinstance(reply, MeshnetError):
            raise reply
        return reply

    async def close(self) -> None:
        self.closed = True


class Ear:
    def __init__(self) -> None:
        self.heard: list[SeamReply | MeshnetError] = []

    def on_reply(self, reply: SeamReply) -> None:
        self.heard.append(reply)

    def on_lost(self, error: MeshnetError) -> None:
        self.heard.append(error)


async def test_each_reply_reaches_the_session_of_its_handle() -> None:
    seam, first, second = ScriptedSeam(), Ear(), Ear()
    channel = SeamChannel(seam, Address("there"))
    handles = [channel.attach(first), channel.attach(second)]
    reply = SessionReleased(handles[1], ())
    seam.replies.put_nowait(reply)
    await asyncio.sleep(0.01)
    assert (first.heard, second.heard) == ([], [reply])
    await channel.close()


@pytest.mark.parametrize(
    "end", [NodeLostError("gone"), MalformedFrameError("frame", "no frame")], ids=["lost", "bad"]
)
async def test_whatever_ends_a_stream_all_sessions_hear_and_senders_see_a_lost_node(
    end: MeshnetError,
) -> None:
    seam, ears = ScriptedSeam(), [Ear(), Ear()]
    channel = SeamChannel(seam, Address("there"))
    for ear in ears:
        channel.attach(ear)
    seam.replies.put_nowait(end)
    await asyncio.sleep(0.01)
    assert [ear.heard for ear in ears] == [[end], [end]]
    with pytest.raises(NodeLostError):
        channel.send(Release(1))
    with pytest.raises(NodeLostError):
        channel.attach(Ear())
    await channel.close()


class Deaf(Ear):
    def on_reply(self, reply: SeamReply) -> None:
        raise TypeError("no such reply")

    def on_lost(self, error: MeshnetError) -> None:
        raise TypeError("no such error")


class ScriptedPeer(Peer):
    """Opens a stream once the test lets it; refuses where nobody is."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.closed = False
        self.seams: list[ScriptedSeam] = []
        self.gate = asyncio.Event()

    @property
    def address(self) -> Address:
        return self._address

    async def open_seam(self, timeout_seconds: float) -> ClientSeam:
        await self.gate.wait()
        if self._address.startswith("nowhere"):
            raise NodeUnreachableError("nobody is there")
        self.seams.append(ScriptedSeam())
        return self.seams[-1]

    async def close(self) -> None:
        self.closed = True

    async def capability(self, timeout_seconds: float, padding_bytes: int = 0) -> Capability:
        raise NotImplementedError

    async def health(self, timeout_seconds: float) -> HealthReport:
        raise NotImplementedError

    async def release(self, key: SessionKey, timeout_seconds: float) -> None:
        raise NotImplementedError

    async def cancel(self, key: SessionKey, reason: str, timeout_seconds: float) -> None:
        raise NotImplementedError


class ScriptedTransport(Transport):
    def __init__(self, *, open_at_once: bool = True) -> None:
        self._open_at_once = open_at_once
        self.peers: list[ScriptedPeer] = []

    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        self.peers.append(ScriptedPeer(address))
        if self._open_at_once:
            self.peers[-1].gate.set()
        return self.peers[-1]

    @property
    def open(self) -> list[str]:
        return [peer.address for peer in self.peers if not peer.closed]


async def test_a_listener_that_fails_ends_the_channel_for_all_and_the_pool_replaces_it() -> None:
    transport, ear = ScriptedTransport(), Ear()
    pool = ChannelPool(transport)
    channel = await pool.channel(Address("there"), 1)
    handle = channel.attach(Deaf())
    channel.attach(ear)
    transport.peers[0].seams[0].replies.put_nowait(SessionReleased(handle, ()))
    await asyncio.sleep(0.01)
    assert [type(heard) for heard in ear.heard] == [NodeLostError]
    assert isinstance(channel.broken, NodeLostError)
    assert "no such reply" in channel.broken.message
    assert transport.peers[0].seams[0].closed
    assert await pool.channel(Address("there"), 1) is not channel
    await pool.close()


async def test_of_an_address_where_nobody_is_nothing_stays() -> None:
    transport = ScriptedTransport(open_at_once=False)
    pool = ChannelPool(transport)
    asked = [asyncio.create_task(pool.channel(Address("nowhere"), 1)) for _ in range(2)]
    await asyncio.sleep(0)
    transport.peers[0].gate.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [NodeUnreachableError] * 2
    await asyncio.sleep(0)
    assert [peer.address for peer in transport.peers] == ["nowhere"], "both waited for one"
    assert transport.open == []
    assert not pool._lines


async def test_an_idle_connection_is_closed_when_another_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = ScriptedTransport()
    pool = ChannelPool(transport)
    busy = await pool.channel(Address("busy"), 1)
    handle = busy.attach(Ear())
    await pool.channel(Address("idle"), 1)
    pool.peer(Address("asked"))
    await pool.channel(Address("next"), 1)
    assert transport.open == ["busy", "idle", "asked", "next"], "not idle for long"
    monkeypatch.setattr(channel_module, "IDLE_SECONDS", 0.0)
    await pool.channel(Address("last"), 1)
    await asyncio.sleep(0.01)
    assert transport.open == ["busy", "last"]
    assert await pool.channel(Address("busy"), 1) is busy
    busy.detach(handle)
    await pool.close()
    assert transport.open == []


async def test_a_stream_that_is_being_opened_while_the_pool_closes_is_closed_too() -> None:
    transport = ScriptedTransport(open_at_once=False)
    pool = ChannelPool(transport)
    opening = asyncio.create_task(pool.channel(Address("there"), 1))
    await asyncio.sleep(0)
    await pool.close()
    transport.peers[0].gate.set()
    with pytest.raises(NodeUnreachableError, match="closed here"):
        await opening
    assert [seam.closed for seam in transport.peers[0].seams] == [True]
    assert transport.open == []
