"""The straight way back, without a network: what is sent, what is sent again, what is believed."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from meshnet.domain.errors import (
    MeshnetError,
    NodeLostError,
    NodeUnreachableError,
    SessionNotFoundError,
    status_of,
)
from meshnet.domain.frames import (
    AttachReturn,
    ReturnedTokens,
    ReturnPath,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import Address, NodeId, RouteSessionId, SessionKey
from meshnet.domain.nodes import FlowControl
from meshnet.node.returns import (
    DEAD_END_SECONDS,
    KEPT_REPLIES,
    DeadEnds,
    ReturnDesk,
    StraightReturn,
    straight_return,
)
from meshnet.node.track import MAX_ROWS_IN_FLIGHT

HEAD = Address("head:1")
KEY = SessionKey(RouteSessionId("gen"), 0)
SECRET = bytes(range(16))


@dataclass
class Head:
    """A pool and a channel to a head that answers as it is told."""

    answer: SeamReply | MeshnetError | None = None
    sent: list[SeamRequest] = field(default_factory=list)
    listener: StraightReturn | None = None
    broken: bool = False
    asked: int = 0

    async def channel(
        self, _address: Address, _timeout_seconds: float, _node_id: NodeId | None
    ) -> "Head":
        self.asked += 1
        if isinstance(self.answer, NodeUnreachableError):
            raise self.answer
        return self

    def attach(self, listener: StraightReturn) -> int:
        self.listener = listener
        return 3

    def detach(self, _handle: int) -> None:
        self.listener = None

    def send(self, request: SeamRequest) -> None:
        if self.broken:
            raise NodeLostError("the stream is gone")
        self.sent.append(request)
        if isinstance(request, AttachReturn) and self.listener is not None:
            if isinstance(self.answer, MeshnetError):
                self.listener.on_lost(self.answer)
            elif self.answer is not None:
                self.listener.on_reply(self.answer)


def reply(step: int) -> TokenReply:
    return TokenReply(9, step, GeneratedToken(step + 10, 65))


async def way(head: Head, back: list[TokenReply], dead_ends: DeadEnds) -> StraightReturn | None:
    path = ReturnPath(HEAD, SECRET)
    return await straight_return(head, dead_ends, path, KEY, back.append)  # type: ignore[arg-type]


async def test_tokens_take_the_straight_way_with_the_tails_own_handle():
    head = Head(SessionOpened(3, FlowControl()))
    back: list[TokenReply] = []
    made = await way(head, back, DeadEnds())
    assert made is not None
    made.send(reply(1))
    assert head.sent == [
        AttachReturn(3, KEY, SECRET),
        ReturnedTokens((TokenReply(3, 1, GeneratedToken(11, 65)),)),
    ]
    assert back == []


@pytest.mark.parametrize("how", ["told", "on sending"])
async def test_what_may_not_have_arrived_is_sent_again_along_the_seams(how):
    head = Head(SessionOpened(3, FlowControl()))
    back: list[TokenReply] = []
    made = await way(head, back, DeadEnds())
    assert made is not None
    many = KEPT_REPLIES + 5
    for step in range(many):
        made.send(reply(step))
    head.broken = True
    if how == "told":
        made.on_lost(NodeLostError("gone"))
        made.send(reply(many))
    else:
        made.send(reply(many))
    made.on_lost(NodeLostError("gone"))
    steps = [each.step for each in back]
    assert steps == list(range(many + 1))[-len(steps) :]
    assert len(steps) >= KEPT_REPLIES > MAX_ROWS_IN_FLIGHT
    made.send(reply(many + 1))
    assert back[-1] == reply(many + 1)


async def test_a_head_that_cannot_be_reached_is_left_alone_for_a_while():
    head, dead_ends = Head(NodeUnreachableError("no answer")), DeadEnds()
    assert [await way(head, [], dead_ends) for _ in range(3)] == [None] * 3
    assert head.asked == 1
    now = asyncio.get_running_loop().time()
    path = ReturnPath(HEAD, SECRET)
    assert dead_ends.known(path, now)
    assert not dead_ends.known(path, now + DEAD_END_SECONDS)
    assert not dead_ends.known(replace(path, address=Address("another:1")), now)
    # Behind a relay, another head has the same address.
    assert not dead_ends.known(replace(path, node_id=NodeId("another")), now)


async def test_a_head_that_refuses_is_asked_again_for_the_next_session():
    refusal = SessionFailed(3, status_of(SessionNotFoundError("no")))
    head, dead_ends = Head(refusal), DeadEnds()
    assert [await way(head, [], dead_ends) for _ in range(2)] == [None] * 2
    assert head.asked == 2


async def test_a_way_that_was_left_is_silent():
    head = Head(SessionOpened(3, FlowControl()))
    back: list[TokenReply] = []
    made = await way(head, back, DeadEnds())
    assert made is not None
    made.send(reply(1))
    made.leave()
    made.on_lost(NodeLostError("gone"))
    assert (back, head.listener) == ([], None)


@dataclass
class Session:
    """A head's session."""

    return_key: bytes | None = SECRET
    over: bool = False
    came: list[TokenReply] = field(default_factory=list)

    def token_returned(self, token: TokenReply) -> None:
        self.came.append(token)


class Seam:
    """The head's end of a stream."""

    def __init__(self) -> None:
        self.said: list[SeamReply] = []

    def send(self, answer: SeamReply) -> None:
        self.said.append(answer)


def test_the_desk_believes_who_has_the_key_while_the_session_runs():
    desk, seam, session = ReturnDesk(FlowControl()), Seam(), Session()
    desk.attach(seam, AttachReturn(5, KEY, SECRET), session)  # type: ignore[arg-type]
    assert seam.said == [SessionOpened(5, FlowControl())]
    mine, other = TokenReply(5, 1, GeneratedToken(1, 1)), TokenReply(6, 1, GeneratedToken(1, 1))
    desk.take((mine, other))
    assert session.came == [mine]
    session.over = True
    desk.take((mine,))
    assert session.came == [mine]


@pytest.mark.parametrize(
    "session", [None, Session(None), Session(bytes(16))], ids=["none", "awaits none", "other key"]
)
def test_the_desk_says_the_same_to_all_that_it_does_not_believe(session):
    desk, seam = ReturnDesk(FlowControl()), Seam()
    desk.attach(seam, AttachReturn(5, KEY, SECRET), session)  # type: ignore[arg-type]
    desk.take((TokenReply(5, 1, GeneratedToken(1, 1)),))
    unknown = SessionNotFoundError(f"session {KEY} awaits no tokens from here")
    assert seam.said == [SessionFailed(5, status_of(unknown))]
    assert session is None or session.came == []
