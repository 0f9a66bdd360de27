"""Credits are neither made nor lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.ledger import (
    HOUSE,
    Account,
    Entry,
    Posting,
    entry_of,
    key_account,
    node_account,
    require_postable,
    reversal,
)

AMOUNTS = st.dictionaries(
    st.sampled_from([key_account("a"), key_account("b"), node_account("n"), HOUSE]),
    st.integers(-(2**60), 2**60),
)


def balances(entries: list[Entry]) -> dict[Account, int]:
    found: dict[Account, int] = {}
    for entry in entries:
        for posting in entry.postings:
            found[posting.account] = found.get(posting.account, 0) + posting.amount
    return found


@given(st.lists(AMOUNTS, max_size=6), st.data())
def test_all_balances_sum_to_nothing_and_reversals_undo_their_entries(
    amounts: list[dict[Account, int]], data: st.DataObject
) -> None:
    entries = [entry_of(f"e{index}", index, each) for index, each in enumerate(amounts)]
    assert sum(balances(entries).values()) == 0
    kept = [entry for entry in entries if not data.draw(st.booleans())]
    undone = [reversal(entry, 9) for entry in entries if entry not in kept]
    left = {account: amount for account, amount in balances(entries + undone).items() if amount}
    assert left == {account: amount for account, amount in balances(kept).items() if amount}


@given(AMOUNTS)
def test_an_entry_has_the_amounts_it_was_made_of_and_the_house_takes_the_rest(
    amounts: dict[Account, int],
) -> None:
    entry = entry_of("e", 0, amounts)
    found = {posting.account: posting.amount for posting in entry.postings}
    assert {**found, HOUSE: 0} == {
        **{account: amount for account, amount in amounts.items() if amount},
        HOUSE: 0,
    }
    others = sum(amount for account, amount in amounts.items() if account != HOUSE)
    assert found.get(HOUSE, 0) == -others


@pytest.mark.parametrize(
    ("postings", "problem"),
    [
        ((Posting(HOUSE, 1),), "sum to 1"),
        ((Posting(HOUSE, 1), Posting(HOUSE, -1)), "one of them only"),
    ],
)
def test_what_doesnt_balance_is_no_entry(postings: tuple[Posting, ...], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        Entry("e", 0, postings)


@given(AMOUNTS, AMOUNTS)
def test_an_entry_is_posted_once(amounts: dict[Account, int], other: dict[Account, int]) -> None:
    entry, changed = entry_of("e", 1, amounts), entry_of("e", 2, other)
    assert require_postable(None, None, entry)
    if set(entry.postings) == set(changed.postings):
        assert not require_postable(entry, None, changed)
    else:
        with pytest.raises(InvalidArgumentError, match="posted already"):
            require_postable(entry, None, changed)


def test_a_reversal_must_be_its_entrys_opposite() -> None:
    entry = entry_of("e", 1, {key_account("a"): -5})
    undone = reversal(entry, 2)
    assert require_postable(None, entry, undone)
    with pytest.raises(InvalidArgumentError, match="no entry e"):
        require_postable(None, None, undone)
    with pytest.raises(InvalidArgumentError, match="aren't the opposite"):
        require_postable(None, entry, Entry(undone.entry_id, 2, (), "e"))
    with pytest.raises(InvalidArgumentError, match="is e/reversed"):
        require_postable(None, entry, Entry("again", 2, undone.postings, "e"))
    with pytest.raises(InvalidArgumentError, match="can't be reversed"):
        reversal(undone, 3)
