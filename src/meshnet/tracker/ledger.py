"""Double-entry bookkeeping of credits: who owes whom for computing.

A credit is one token computed in one layer. Pure and exact: amounts are integers, the postings of
an entry sum to zero, and so do all balances at any time. An entry is never changed; what was wrong
is undone by another entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from meshnet.domain.errors import InvalidArgumentError

Account = NewType("Account", str)
"""``key:ID``, ``node:ID`` or ``house``."""

HOUSE = Account("house")
"""Gets or gives what the other accounts of an entry leave, so that every entry balances."""


def key_account(key_id: str) -> Account:
    """The account that a key pays from."""
    return Account(f"key:{key_id}")


def node_account(node_id: str) -> Account:
    """The account that a node earns on."""
    return Account(f"node:{node_id}")


@dataclass(frozen=True, slots=True)
class Posting:
    """Credits that an account gets, or gives if negative."""

    account: Account
    amount: int

    def __post_init__(self) -> None:
        if not self.account:
            raise InvalidArgumentError("account", "it is empty")


@dataclass(frozen=True, slots=True)
class Entry:
    """Postings that belong together; raises :class:`InvalidArgumentError` unless they balance."""

    entry_id: str
    """Of a request's entry, the answer's id."""
    unix: int
    postings: tuple[Posting, ...]
    reverses: str | None = None
    """The entry that this one undoes."""

    def __post_init__(self) -> None:
        if not self.entry_id:
            raise InvalidArgumentError("entry_id", "it is empty")
        total = sum(posting.amount for posting in self.postings)
        if total != 0:
            raise InvalidArgumentError("postings", f"they sum to {total}, not to 0")
        accounts = [posting.account for posting in self.postings]
        if len(set(accounts)) != len(accounts):
            raise InvalidArgumentError("postings", "an account may stand in one of them only")


def entry_of(entry_id: str, unix: int, amounts: Mapping[Account, int]) -> Entry:
    """The entry of these amounts; the house balances them. Nothing is posted for an amount of 0."""
    total = sum(amounts.values())
    balanced = {**amounts, HOUSE: amounts.get(HOUSE, 0) - total}
    return Entry(
        entry_id,
        unix,
        tuple(Posting(account, amount) for account, amount in balanced.items() if amount),
    )


def reversal(entry: Entry, unix: int) -> Entry:
    """The entry that undoes another; it has an id of its own that follows from the other's.

    Raises :class:`InvalidArgumentError` for one that is a reversal itself.
    """
    if entry.reverses is not None:
        raise InvalidArgumentError(
            "entry_id", f"{entry.entry_id} is a reversal, which can't be reversed"
        )
    undone = tuple(Posting(each.account, -each.amount) for each in entry.postings)
    return Entry(f"{entry.entry_id}/reversed", unix, undone, entry.entry_id)


def require_postable(known: Entry | None, reversed_entry: Entry | None, entry: Entry) -> bool:
    """Whether an entry is to be posted; False if it was already, word for word.

    ``known`` is the posted entry with its id, ``reversed_entry`` the one it reverses; None where
    there is none. Raises :class:`InvalidArgumentError` for an id that another entry has, and for a
    reversal that isn't its entry's exact opposite.
    """
    if known is not None:
        same = (frozenset(known.postings), known.reverses) == (
            frozenset(entry.postings),
            entry.reverses,
        )
        if not same:
            raise InvalidArgumentError(
                "entry_id", f"{entry.entry_id} was posted already, with other postings"
            )
        return False
    if entry.reverses is not None:
        if reversed_entry is None:
            raise InvalidArgumentError("reverses", f"there is no entry {entry.reverses}")
        undone = reversal(reversed_entry, entry.unix)
        if frozenset(undone.postings) != frozenset(entry.postings):
            raise InvalidArgumentError(
                "postings", f"they aren't the opposite of those of {entry.reverses}"
            )
        if undone.entry_id != entry.entry_id:
            raise InvalidArgumentError(
                "entry_id", f"the reversal of {entry.reverses} is {undone.entry_id}"
            )
    return True
