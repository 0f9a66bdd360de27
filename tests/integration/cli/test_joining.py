"""How a machine comes by its identity, and what it keeps."""

import pytest

from meshnet.cli.cluster import StateFolder
from meshnet.cli.joining import identity_for
from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from tests.support.live_tracker import Files, live_tracker


@pytest.fixture
async def tracker(tmp_path):
    async with live_tracker(Files(tmp_path)) as made:
        yield made


@pytest.fixture
def state(tmp_path) -> StateFolder:
    return StateFolder(tmp_path / "state")


async def test_a_token_makes_a_member_that_needs_no_token_any_more(tracker, state):
    address, folder, identity = await identity_for(state, tracker.token().encode(), "desk")
    assert address == tracker.address
    assert identity == folder.identity()
    again = await identity_for(state, None, "desk")
    assert again[::2] == (address, identity)
    kept = state.membership()
    assert kept is not None
    assert (kept.cluster, kept.name) == ("test", "desk")
    assert state.credentials() == (address, identity)
    assert (state.root / "node" / "key.pem").stat().st_mode & 0o077 == 0


async def test_a_member_keeps_its_identity_though_it_shows_a_token(tracker, state):
    _, _, first = await identity_for(state, tracker.token().encode(), "desk")
    used_up = tracker.token("x" * 24).encode()
    assert (await identity_for(state, used_up, "desk"))[2] == first


async def test_a_member_is_called_what_was_asked_for_last(tracker, state):
    await identity_for(state, tracker.token().encode(), "desk")
    for token, name, expected in (
        (None, None, "desk"),
        (tracker.token().encode(), None, "desk"),
        (None, "lamp", "lamp"),
        (tracker.token().encode(), "shelf", "shelf"),
    ):
        await identity_for(state, token, name)
        kept = state.membership()
        assert kept is not None
        assert kept.name == expected


async def test_a_machine_that_was_removed_joins_as_a_new_one(tracker, state):
    _, _, first = await identity_for(state, tracker.token().encode(), "desk")
    tracker.service.remove(first.node_id)
    _, _, second = await identity_for(state, tracker.token().encode(), "desk")
    assert second.node_id != first.node_id
    assert list(tracker.service.state.members) == [second.node_id]


async def test_a_token_that_is_not_good_leaves_nothing_behind(tracker, state):
    with pytest.raises(UnauthenticatedError, match="token"):
        await identity_for(state, tracker.token("x" * 24).encode(), "desk")
    with pytest.raises(InvalidArgumentError, match="expired"):
        await identity_for(state, tracker.token(expires=1).encode(), "desk")
    assert state.membership() is None
    with pytest.raises(InvalidArgumentError, match="belongs to no cluster"):
        state.credentials()


async def test_without_a_token_a_stranger_is_told_what_to_do(state):
    with pytest.raises(InvalidArgumentError, match="meshnet up"):
        await identity_for(state, None, "desk")


async def test_a_member_does_not_change_its_cluster_by_accident(tracker, state, tmp_path):
    await identity_for(state, tracker.token().encode(), "desk")
    async with live_tracker(Files(tmp_path), "other") as other:
        with pytest.raises(InvalidArgumentError, match="another cluster than test"):
            await identity_for(state, other.token().encode(), "desk")


def test_a_damaged_membership_is_told_by_its_file(state):
    state.root.mkdir()
    (state.root / "cluster.json").write_text("{")
    with pytest.raises(InvalidArgumentError, match=r"cluster\.json"):
        state.membership()
