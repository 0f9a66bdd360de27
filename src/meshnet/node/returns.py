"""The straight way of a token from the tail to the head, past the nodes between.

The tail opens it when the session opens, on a stream of its own to the head; the key that the head
put into the session's opening proves that it may. If the head can't be reached, or the stream
breaks later, tokens go back along the seams. Whatever may not have arrived is then sent once more
that way; the head drops a token that it has already.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from meshnet.domain.errors import (
    MeshnetError,
    NodeError,
    SessionNotFoundError,
    error_from,
    status_of,
)
from meshnet.domain.frames import (
    AttachReturn,
    ReturnedTokens,
    ReturnPath,
    SeamReply,
    SessionFailed,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import FlowControl
from meshnet.transport.base import ServerSeam
from meshnet.transport.channel import ChannelPool, SeamChannel

LOGGER = logging.getLogger(__name__)
ATTACH_SECONDS = 2.0
"""How long the head may take to be reached and to answer, while the session's opening waits."""
DEAD_END_SECONDS = 60.0
"""How long a head that couldn't be reached isn't tried again."""
KEPT_REPLIES = 128
"""How many of the last tokens are sent again when the stream breaks: more than are ever on it."""


class DeadEnds:
    """Heads that a node couldn't reach lately, so that not every session waits to learn it."""

    def __init__(self) -> None:
        self._until: dict[tuple[Address, NodeId | None], float] = {}

    def note(self, path: ReturnPath, now: float) -> None:
        """The head couldn't be reached at ``now``, in seconds of the event loop's clock."""
        self._until = {known: until for known, until in self._until.items() if until > now}
        # Heads behind one relay share its address.
        self._until[path.address, path.node_id] = now + DEAD_END_SECONDS

    def known(self, path: ReturnPath, now: float) -> bool:
        """Whether trying is no use yet."""
        return self._until.get((path.address, path.node_id), now) > now


class StraightReturn:
    """The tail's end: listens on the stream to the head for one session."""

    def __init__(
        self, channel: SeamChannel, key: SessionKey, back: Callable[[TokenReply], None]
    ) -> None:
        """``back`` sends a token along the seams."""
        self._channel = channel
        self._key = key
        self._back = back
        self._kept: deque[TokenReply] = deque(maxlen=KEPT_REPLIES)
        self._broken = False
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handle = channel.attach(self)

    async def attach(self, secret: bytes) -> None:
        """Ask the head to await the session's tokens here; raises what it says against it."""
        self._channel.send(AttachReturn(self.handle, self._key, secret))
        await self._attached

    def send(self, reply: TokenReply) -> None:
        """Bring a token to the head, this way while there is one."""
        if self._broken:
            self._back(reply)
            return
        self._kept.append(reply)
        straight = TokenReply(self.handle, reply.step, reply.token, reply.unknown)
        try:
            self._channel.send(ReturnedTokens((straight,)))
        except NodeError as error:
            self.on_lost(error)

    def leave(self) -> None:
        """Hear no more of it."""
        self._broken = True
        self._channel.detach(self.handle)
        self._attached.cancel()

    def on_reply(self, reply: SeamReply) -> None:
        """The head agrees, or it doesn't, or not any more."""
        if isinstance(reply, SessionFailed):
            self.on_lost(error_from(reply.status))
        elif isinstance(reply, SessionOpened) and not self._attached.done():
            self._attached.set_result(None)

    def on_lost(self, error: MeshnetError) -> None:
        """No token gets through any more; the last ones may not have."""
        if not self._attached.done():
            self._attached.set_exception(error)
        if self._broken:
            return
        self._broken = True
        if self._kept:
            LOGGER.warning(
                "session %s lost its straight way to the head: %s", self._key, error.message
            )
        for reply in self._kept:
            self._back(reply)
        self._kept.clear()


async def straight_return(
    channels: ChannelPool,
    dead_ends: DeadEnds,
    path: ReturnPath,
    key: SessionKey,
    back: Callable[[TokenReply], None],
) -> StraightReturn | None:
    """The way to the head, ready for the first token; None if tokens must go back by the seams."""
    loop = asyncio.get_running_loop()
    if dead_ends.known(path, loop.time()):
        return None
    made: StraightReturn | None = None
    try:
        async with asyncio.timeout(ATTACH_SECONDS):
            channel = await channels.channel(path.address, ATTACH_SECONDS, path.node_id)
            made = StraightReturn(channel, key, back)
            await made.attach(path.key)
    except (MeshnetError, TimeoutError) as error:
        if made is not None:
            made.leave()
        if isinstance(error, NodeError | TimeoutError):
            dead_ends.note(path, loop.time())
        LOGGER.info("session %s has no straight way to the head: %s", key, error)
        return None
    except asyncio.CancelledError:
        if made is not None:
            made.leave()
        raise
    return made


class Awaiting(Protocol):
    """A session that tokens come back to."""

    @property
    def return_key(self) -> bytes | None:
        """What who brings its tokens must show; None if it awaits none from elsewhere."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def token_returned(self, reply: TokenReply) -> None:
        """Take a token."""


class ReturnDesk:
    """The head's end of one stream: which tail's handle is which session's."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self._awaiting: dict[int, Awaiting] = {}

    def attach(self, seam: ServerSeam, request: AttachReturn, session: Awaiting | None) -> None:
        """Await a session's tokens here if the bringer has its key."""
        key = None if session is None else session.return_key
        if session is None or key is None or not hmac.compare_digest(key, request.secret):
            # The same answer whether there is no such session or its key is another.
            unknown = SessionNotFoundError(f"session {request.key} awaits no tokens from here")
            seam.send(SessionFailed(request.handle, status_of(unknown)))
            return
        self._awaiting = {
            handle: other for handle, other in self._awaiting.items() if not other.over
        }
        self._awaiting[request.handle] = session
        seam.send(SessionOpened(request.handle, self._flow))

    def take(self, replies: Sequence[TokenReply]) -> None:
        """Bring tokens to their sessions; those that no open session awaits here are dropped."""
        for reply in replies:
            session = self._awaiting.get(reply.handle)
            if session is not None and not session.over:
                session.token_returned(reply)
