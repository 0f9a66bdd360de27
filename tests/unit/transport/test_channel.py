"""One stream, many sessions: whatever ends it, every session hears, and later senders know."""

import asyncio

import pytest

from meshnet.domain.errors import MalformedFrameError, MeshnetError, NodeLostError
from meshnet.domain.frames import Release, SeamReply, SeamRequest, SessionReleased
from meshnet.domain.ids import Address
from meshnet.transport.base import ClientSeam
from meshnet.transport.channel import SeamChannel


class ScriptedSeam(ClientSeam):
    """Gives out what the test puts in: replies, and the error it ends with."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[SeamReply | MeshnetError] = asyncio.Queue()
        self.sent: list[SeamRequest] = []

    def send(self, request: SeamRequest) -> None:
        self.sent.append(request)

    async def receive(self) -> SeamReply:
        reply = await self.replies.get()
        if isinstance(reply, MeshnetError):
            raise reply
        return reply

    async def close(self) -> None:
        return


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
