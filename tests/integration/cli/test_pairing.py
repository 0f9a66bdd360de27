"""What `meshnet join` without a token finds, asks and says, on a network of the test's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from meshnet.cli import pairing
from meshnet.cli.cluster import Membership, StateFolder
from meshnet.cli.clusterwide import good_for, limited
from meshnet.cli.pairing import token_for
from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    NodeUnreachableError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address
from meshnet.tracker.pairing_messages import CodeReply, CodeRequest
from meshnet.transport.certificates import Authority, Role, node_id_of
from meshnet.transport.discovery import Announced
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.pairing import PairingCode

CODE = "7F4-K2Q"
HOME = Announced("home", "a" * 64, (Address("10.0.0.1:7700"), Address("192.168.1.1:7700")))
WORK = Announced("work", "b" * 64, (Address("192.168.1.2:7700"),))
NEWER = Announced("newer", "c" * 64, (Address("192.168.1.3:7700"),), protocol=2)


@dataclass
class Network:
    """Who announces what, and what the user types."""

    announced: list[Announced] = field(default_factory=list)
    typed: list[str] | None = None
    """None: there is no terminal."""
    asked: list[tuple[Address, str]] = field(default_factory=list)
    refusal: MeshnetError | None = None
    multicast: bool = True

    async def browse(self, _seconds: float) -> tuple[Announced, ...]:
        if not self.multicast:
            raise NodeUnreachableError("no multicast here")
        return tuple(self.announced)

    async def pair(
        self, places: Sequence[Address], code: PairingCode, _seconds: float
    ) -> JoinToken:
        self.asked += [(it, str(code)) for it in places]
        there = [it for it in places if not it.startswith("10.")]
        if not there:
            raise NodeUnreachableError("there is no way there")
        if self.refusal is not None:
            raise self.refusal
        if str(code) != CODE:
            raise UnauthenticatedError("it isn't the code", field="proof")
        return JoinToken(there[0], "a" * 64, "s" * 24, 2**40)

    def read(self, *_prompt: object) -> str:
        if not self.typed:
            raise EOFError
        return self.typed.pop(0)


@pytest.fixture
def network(monkeypatch) -> Network:
    made = Network()
    monkeypatch.setattr(pairing, "browse", made.browse)
    monkeypatch.setattr(pairing, "pair", made.pair)
    monkeypatch.setattr(pairing, "_can_ask", lambda: made.typed is not None)
    monkeypatch.setattr("builtins.input", made.read)
    return made


@pytest.fixture
def state(tmp_path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def become_member(state: StateFolder) -> None:
    authority = Authority.create("test")
    folder = state.node()
    public = folder.public_key()
    certificate = authority.issue(public, node_id_of(public), role=Role.NODE)
    folder.keep(certificate, authority.certificate_pem)
    state.remember(Membership(tracker="192.168.1.1:7700", cluster="home", name="desk"))


def address_in(word: str | None) -> Address:
    assert word is not None
    return JoinToken.parse(word).address


def test_a_token_is_taken_as_it_is_and_goes_with_no_option_of_pairing(network, state):
    assert token_for(state, "mesh1_x", None, None) == "mesh1_x"
    for tracker, code in (("192.168.1.1:7700", None), (None, CODE)):
        with pytest.raises(InvalidArgumentError, match=r"token: .*leave out"):
            token_for(state, "mesh1_x", tracker, code)


def test_a_member_needs_no_token_and_pairs_only_when_it_is_given_a_code(network, state):
    become_member(state)
    network.announced = [WORK]
    assert token_for(state, None, None, None) is None
    assert network.asked == []
    assert address_in(token_for(state, None, None, CODE)) == WORK.addresses[0]


def test_without_a_terminal_a_code_must_be_given(network, state):
    network.announced = [HOME]
    with pytest.raises(InvalidArgumentError, match=r"code: .*belongs to no cluster.*--code"):
        token_for(state, None, None, None)
    assert network.asked == []


def test_the_one_cluster_is_tried_at_each_of_its_addresses(network, state, capsys):
    network.announced = [NEWER, HOME]
    assert address_in(token_for(state, None, None, "7f4 k2q")) == HOME.addresses[1]
    assert network.asked == [(it, CODE) for it in HOME.addresses]
    shown = capsys.readouterr()
    assert ("found home" in shown.err, shown.out) == (True, "")


def test_what_can_not_be_reached_is_told(network, state):
    with pytest.raises(NodeUnreachableError, match="no way there"):
        token_for(state, None, "10.0.0.1:7700", CODE)


def test_a_given_tracker_is_asked_without_a_look_around(network, state):
    network.announced = [WORK]
    assert address_in(token_for(state, None, "192.168.1.9:1", CODE)) == "192.168.1.9:1"
    with pytest.raises(InvalidArgumentError, match=r"tracker: .*HOST:PORT"):
        token_for(state, None, "192.168.1.9", CODE)


def test_where_nothing_is_found_it_is_said_what_to_do(network, state):
    with pytest.raises(NodeUnreachableError, match=r"meshnet up.*5353.*paste.*--tracker"):
        token_for(state, None, None, CODE)
    network.multicast = False
    with pytest.raises(NodeUnreachableError, match=r"no multicast here; paste.*--tracker"):
        token_for(state, None, None, CODE)
    network.multicast, network.announced = True, [NEWER]
    with pytest.raises(NodeUnreachableError, match=r"newer at .* another version"):
        token_for(state, None, None, CODE)


def test_of_several_one_is_chosen_on_a_terminal_and_named_elsewhere(network, state, capsys):
    network.announced = [HOME, NEWER, WORK]
    with pytest.raises(
        InvalidArgumentError, match=r"tracker: .*home at 10\.0\.0\.1:7700, work at .*--tracker"
    ):
        token_for(state, None, None, CODE)
    network.typed = ["3", "2", CODE]
    assert address_in(token_for(state, None, None, None)) == WORK.addresses[0]
    rows = capsys.readouterr().out.splitlines()
    assert rows[1:] == [
        f"1\thome\t10.0.0.1:7700\t{'a' * 16}",
        f"2\twork\t192.168.1.2:7700\t{'b' * 16}",
    ]


def test_a_code_that_was_typed_wrong_is_asked_for_again_three_times_in_all(network, state):
    network.announced = [WORK]
    network.typed = ["7F4", "000-000", CODE, "left"]
    assert address_in(token_for(state, None, None, None)) == WORK.addresses[0]
    assert [code for _, code in network.asked] == ["000-000", CODE]
    network.typed = ["000-001", "000-002", "000-003", CODE]
    with pytest.raises(UnauthenticatedError, match="isn't the code"):
        token_for(state, None, None, None)
    assert network.typed == [CODE]
    network.typed = ["1", "2", "3", CODE]
    with pytest.raises(InvalidArgumentError, match="letters and digits"):
        token_for(state, None, None, None)


def test_a_code_that_is_over_or_was_given_is_not_asked_for_again(network, state):
    network.announced, network.typed = [WORK], [CODE, CODE]
    network.refusal = UnauthenticatedError("no code is good", field="code")
    with pytest.raises(UnauthenticatedError, match="no code is good"):
        token_for(state, None, None, None)
    network.refusal = None
    with pytest.raises(UnauthenticatedError, match="isn't the code"):
        token_for(state, None, None, "000-000")
    assert network.typed == [CODE]
    network.typed = []
    with pytest.raises(InvalidArgumentError, match="input: it ended"):
        token_for(state, None, None, None)


def test_limits_of_a_code_are_those_given_and_within_bounds():
    assert limited(CodeRequest, {"seconds": None, "uses": 2}) == CodeRequest(seconds=600, uses=2)
    with pytest.raises(InvalidArgumentError, match=r"uses: .*less than or equal to 50"):
        limited(CodeRequest, {"seconds": None, "uses": 51})


@pytest.mark.parametrize(
    ("seconds", "uses", "expected"),
    [(600, 5, "good for 10 min and 5 machines"), (90, 1, "good for 90 s and 1 machine")],
)
def test_how_far_a_code_can_be_used_is_said_in_words(seconds, uses, expected):
    assert good_for(CodeReply(code=CODE, seconds=seconds, uses=uses)) == expected
