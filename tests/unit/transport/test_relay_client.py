"""A node's end of the relay, when nothing can be had there."""

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.transport import relay_client
from meshnet.transport.relay_client import RelayClient
from tests.support.relays import until


class NoIdentity:
    """Fails each time that it is asked, with what it was given."""

    removed = None

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def load(self):
        self.asked += 1
        raise self.error


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(relay_client, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(relay_client, "LONGEST_PAUSE_SECONDS", 0.0)


def client(identity: NoIdentity) -> RelayClient:
    return RelayClient(Address("127.0.0.1:1"), Address("127.0.0.1:2"), identity)


async def test_it_goes_on_trying_however_often_that_failed():
    identity = NoIdentity(InvalidArgumentError("key", "is gone"))
    waiting = client(identity)
    waiting.start()
    # 2**1024 is more than a float holds.
    await until(lambda: identity.asked > 1100 * relay_client.WAITING)
    await waiting.close()


async def test_what_ends_by_a_fault_is_told_and_begun_again(caplog):
    identity = NoIdentity(RuntimeError("nobody expected this"))
    waiting = client(identity)
    waiting.start()
    await until(lambda: identity.asked > 3 * relay_client.WAITING)
    await waiting.close()
    asked = identity.asked
    assert "nobody expected this" in caplog.text
    await until(lambda: identity.asked == asked)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.5), (1, 1.0), (5, 16.0), (6, 20.0), (5000, 20.0)]
)
def test_pauses_double_up_to_the_longest(failures, seconds, monkeypatch):
    monkeypatch.setattr(relay_client, "FIRST_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(relay_client, "LONGEST_PAUSE_SECONDS", 20.0)
    assert relay_client._pause_seconds(failures) == seconds
