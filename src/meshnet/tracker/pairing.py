"""Machines that have a short code come by a join token. Belongs to the tracker's one thread.

The code has 30 bits, so what guards it is that it can't be tried often: each exchange tells whether
one guess was right, and the fifth that wasn't ends the code. Nothing of this is written down; a
tracker that starts again has no code until it makes one.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from meshnet.domain.errors import ResourceExhaustedError, UnauthenticatedError
from meshnet.tracker import messages as msg
from meshnet.tracker import pairing_messages as pm
from meshnet.transport.pairing import PairingCode, PairingKeys, PairingSide, same_proof

LOGGER: Final = logging.getLogger(__name__)
MOST_WRONG: Final = 5
"""Proofs that were wrong, after which a code is good no more."""
EXCHANGE_SECONDS: Final = 15.0
"""From an exchange's first message to the proof."""
BEGINS: Final = 8
"""So many may begin in :data:`BEGIN_SECONDS`: each costs the tracker some 15 ms of computing."""
BEGIN_SECONDS: Final = 10.0
TOKEN: Final = msg.TokenRequest(seconds=120, uses=1)
"""What a machine that proved to have the code is given."""


@dataclass(frozen=True, slots=True)
class OpenCode:
    """A code, and how far it may still be used."""

    code: PairingCode
    until: float
    """Of the steady clock."""
    uses: int
    wrong: int = 0

    def is_good(self, now: float) -> bool:
        """Whether a machine may join with it."""
        return now < self.until and self.uses > 0 and self.wrong < MOST_WRONG

    def used(self) -> OpenCode:
        """After a machine has joined with it."""
        return replace(self, uses=self.uses - 1)

    def guessed(self) -> OpenCode:
        """After somebody showed that he hasn't got it."""
        return replace(self, wrong=self.wrong + 1)


@dataclass(frozen=True, slots=True)
class _Exchange:
    peer: str
    keys: PairingKeys
    until: float


class Pairing:
    """The code that is good now, if there is one, and exchanges that wait for their proof."""

    def __init__(
        self,
        fingerprint: str,
        issue: Callable[[msg.TokenRequest], msg.TokenReply],
        clock: Callable[[], float],
    ) -> None:
        self._fingerprint = fingerprint
        self._issue = issue
        self._clock = clock
        self._open: OpenCode | None = None
        self._exchanges: dict[str, _Exchange] = {}
        self._begun: deque[float] = deque(maxlen=BEGINS)

    def renew(self, request: pm.CodeRequest) -> pm.CodeReply:
        """A new code; the one before, and exchanges that began with it, come to nothing."""
        code = PairingCode.new()
        self._exchanges.clear()
        self._open = OpenCode(code, self._clock() + request.seconds, request.uses)
        return pm.CodeReply(code=str(code), seconds=request.seconds, uses=request.uses)

    def begin(self, peer: str, request: pm.PairRequest) -> pm.PairReply:
        """The tracker's half of an exchange, which tells nothing of the code.

        ``peer``: the address of whoever asks; it has one exchange at a time. Raises
        :class:`UnauthenticatedError` when no code is good, :class:`ResourceExhaustedError` when too
        many begin, ``InvalidArgumentError`` ("message") for what is none.
        """
        now = self._clock()
        good = self._require_good(now)
        self._forget(peer, now)
        if len(self._begun) == BEGINS and now - self._begun[0] < BEGIN_SECONDS:
            raise ResourceExhaustedError("too many machines try to join at once; wait some seconds")
        self._begun.append(now)
        side = PairingSide.tracker(good.code, self._fingerprint)
        keys = side.finish(bytes.fromhex(request.message))
        exchange = secrets.token_hex(16)
        self._exchanges[exchange] = _Exchange(peer, keys, now + EXCHANGE_SECONDS)
        return pm.PairReply(exchange=exchange, message=side.message.hex())

    def prove(self, peer: str, request: pm.ProofRequest) -> pm.ProofReply:
        """A join token for a machine that has the code; each exchange is good for one proof.

        Raises :class:`UnauthenticatedError`: field ``exchange`` for one that isn't there any more,
        ``code`` when no code is good, ``proof`` for a wrong one, which is counted.
        """
        now = self._clock()
        exchange = self._exchanges.get(request.exchange)
        if exchange is None or exchange.peer != peer or now >= exchange.until:
            raise UnauthenticatedError("the exchange is over; begin another", field="exchange")
        del self._exchanges[request.exchange]
        good = self._require_good(now)
        if not same_proof(bytes.fromhex(request.proof), exchange.keys.machine_proof):
            raise self._wrong(peer, good.guessed())
        made = self._issue(TOKEN)
        self._open = good.used()
        LOGGER.info("%s showed the pairing code; it is good for %d more", peer, self._open.uses)
        return pm.ProofReply(
            proof=exchange.keys.tracker_proof.hex(),
            sealed=exchange.keys.seal(made.model_dump_json().encode()).hex(),
        )

    def _wrong(self, peer: str, left: OpenCode) -> UnauthenticatedError:
        self._open = left
        tries = MOST_WRONG - left.wrong
        LOGGER.warning("%s showed a wrong pairing code; %d tries are left", peer, tries)
        after = f"tries left: {tries}" if tries else "too many wrong ones; this one is over"
        return UnauthenticatedError(f"it isn't the code that is good here ({after})", field="proof")

    def _require_good(self, now: float) -> OpenCode:
        if self._open is None or not self._open.is_good(now):
            self._open = None
            self._exchanges.clear()
            raise UnauthenticatedError(
                "no pairing code is good now: one lasts some minutes, some machines and a few "
                "wrong tries; `meshnet token --pair` on the first machine prints another",
                field="code",
            )
        return self._open

    def _forget(self, peer: str, now: float) -> None:
        """Drop exchanges whose time is over, and the peer's last."""
        for name, each in list(self._exchanges.items()):
            if each.peer == peer or now >= each.until:
                del self._exchanges[name]
