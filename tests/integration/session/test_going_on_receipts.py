"""A node dies under a generation: what its chains did is signed chain by chain, and paid once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshnet.domain.generation import Speculation
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.tracker.ledger import HOUSE, node_account
from meshnet.tracker.receiptdesk import ReceiptDesk
from meshnet.tracker.receiptmessages import ReceiptMessage
from meshnet.tracker.receipts import Roster
from meshnet.tracker.store.database import open_database
from meshnet.tracker.store.receipts import ReceiptStore
from meshnet.tracker.store.usage import UsageStore
from meshnet.transport.certificates import Role
from meshnet.transport.channel import ChannelPool
from meshnet.transport.loopback import _LoopbackServerSeam
from meshnet.transport.receipts import ReceiptBook, Signer
from meshnet.transport.tls import Identity
from tests.support.dying import CUTS, dying
from tests.support.identities import member
from tests.support.mesh import Mesh, Setup, ask, prompt_of, until

PROMPT = prompt_of(11)
TOKENS = 9
LAYERS_EACH = 2


class Members(Mesh):
    """Everybody has a key. On the loopback network a death is sudden, on both sides of a node."""

    def __init__(self, setup: Setup) -> None:
        self.at: dict[Address | None, NodeId] = {}
        self.books: dict[NodeId, ReceiptBook] = {}
        super().__init__(setup)

    def _pool(
        self, origin: Address | None, role: Role = Role.NODE
    ) -> tuple[ChannelPool, Identity | None]:
        identity = member(role=role)
        book = ReceiptBook(Signer(identity))
        self.at[origin], self.books[identity.node_id] = identity.node_id, book
        return ChannelPool(self._transport(origin), book), identity

    @property
    def gateway(self) -> NodeId:
        return self.at[None]


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    """In a network that proves who opens a stream."""
    made = Members(Setup(context_length=512))
    peer = property(lambda seam: made.at[seam._link.origin])
    monkeypatch.setattr(_LoopbackServerSeam, "peer", peer)
    return made


@dataclass(frozen=True, slots=True)
class Chain:
    """Who was in a session's chain at an epoch, the gateway first."""

    epoch: int
    nodes: tuple[NodeId, ...]

    def states(self, dead: NodeId | None = None) -> dict[tuple[int, NodeId, NodeId], ReceiptState]:
        """What each seam's receipts are worth, all in all."""
        found = {}
        for up, down in itertools.pairwise(self.nodes):
            state = ReceiptState.SIGNED
            if down == dead:
                state = ReceiptState.UPSTREAM_ONLY
            elif up == dead:
                state = ReceiptState.DOWNSTREAM_ONLY
            found[self.epoch, up, down] = state
        return found


def of_seam(receipt: Receipt) -> tuple[int, NodeId, NodeId]:
    seam = receipt.seam
    return seam.key.route_epoch, seam.upstream.node_id, seam.downstream.node_id


async def balances(
    place: Path, members: Members, told: Mapping[NodeId, Sequence[Receipt]]
) -> dict[str, int]:
    """The accounts when everybody has told everything, and then once more in reverse."""
    database = open_database(str(place))
    desk = ReceiptDesk(ReceiptStore(database))
    nodes = {node.hop.node_id for node in members.nodes}
    roster = Roster(nodes, {members.gateway}, {})
    for reports in (list(told.items()), list(told.items())[::-1]):
        for reporter, receipts in reports:
            messages = [ReceiptMessage.of(receipt) for receipt in receipts]
            assert await desk.take(reporter, messages, roster, time.time())
    found = {str(account): amount for account, amount in UsageStore(database).balances().items()}
    desk.close()
    database.close()
    return found


@pytest.mark.parametrize("place", range(len(CUTS) + 1), ids=["head", "middle", "tail"])
async def test_each_chain_has_receipts_of_its_own_and_each_seam_is_paid_once(
    place: int, members: Members, tmp_path: Path
) -> None:
    async with dying(members) as nodes:
        first = [hop.node_id for hop in members.hops[: len(CUTS) + 1]]
        second = list(first)
        dead, second[place] = first[place], members.hops[place + len(first)].node_id
        chains = [Chain(n, (members.gateway, *each)) for n, each in enumerate((first, second))]
        nodes.doom.kill(place, 6)
        answer = await ask(nodes.model, PROMPT, TOKENS, speculation=Speculation.OFF)
        assert (len(answer.tokens), len(answer.summary.pauses)) == (TOKENS, 1)
        # What the dead one had signed or counted is gone with it.
        alive = {who: book for who, book in members.books.items() if who != dead}
        due = chains[0].states(dead) | chains[1].states()
        words = sum(who != dead for _, *ends in due for who in ends)
        await until(lambda: sum(book.counts.total() for book in alive.values()) == words)
        told = {who: book.take(100) for who, book in alive.items()}

    every = [receipt for receipts in told.values() for receipt in receipts]
    assert {(of_seam(receipt), receipt.state) for receipt in every} == set(due.items())
    assert len({receipt.seam.key.session_id for receipt in every}) == 1
    tokens = {of_seam(receipt): receipt.work.tokens for receipt in every}
    whole = len(PROMPT) + TOKENS - 1
    earned: dict[str, int] = {}
    for seam, state in due.items():
        epoch, _, receiver = seam
        # The second chain computes the first one's tokens anew; nobody had come to the end before.
        assert tokens[seam] == whole if epoch else len(PROMPT) <= tokens[seam] < whole, seam
        if state is ReceiptState.SIGNED:
            account = str(node_account(receiver))
            earned[account] = earned.get(account, 0) + tokens[seam] * LAYERS_EACH
    assert node_account(dead) not in earned
    assert await balances(tmp_path / "accounts.db", members, told) == earned | {
        str(HOUSE): -sum(earned.values())
    }
