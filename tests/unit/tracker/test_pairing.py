"""How far a pairing code may be used, with a clock of the test's own."""

from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from meshnet.tracker import messages as msg
from meshnet.tracker import pairing as limits
from meshnet.tracker import pairing_messages as pm
from meshnet.tracker.pairing import OpenCode, Pairing
from meshnet.transport.pairing import PairingCode, PairingKeys, PairingSide

AUTHORITY = "a" * 64
WRONG = PairingCode("000000")


@dataclass
class Desk:
    """A tracker's pairing, and machines that try it."""

    now: float = 1000.0
    full: bool = False
    """Whether no token can be written down."""
    issued: list[msg.TokenRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pairing = Pairing(AUTHORITY, self._issue, lambda: self.now)

    def _issue(self, request: msg.TokenRequest) -> msg.TokenReply:
        if self.full:
            raise ResourceExhaustedError("no room")
        self.issued.append(request)
        return msg.TokenReply(token_id="", secret=f"s{len(self.issued)}", expires_unix=9)

    def code(self, **limit: int) -> PairingCode:
        return PairingCode.parse(self.pairing.renew(pm.CodeRequest(**limit)).code)

    def begin(
        self, code: PairingCode, peer: str = "10.0.0.9", authority: str = AUTHORITY
    ) -> tuple[pm.ProofRequest, PairingKeys]:
        side = PairingSide.machine(code, authority)
        reply = self.pairing.begin(peer, pm.PairRequest(message=side.message.hex()))
        keys = side.finish(bytes.fromhex(reply.message))
        return pm.ProofRequest(exchange=reply.exchange, proof=keys.machine_proof.hex()), keys

    def pair(self, code: PairingCode, peer: str = "10.0.0.9", authority: str = AUTHORITY) -> str:
        """The secret of the token that a machine gets."""
        shown, keys = self.begin(code, peer, authority)
        reply = self.pairing.prove(peer, shown)
        assert bytes.fromhex(reply.proof) == keys.tracker_proof
        plain = keys.unseal(bytes.fromhex(reply.sealed))
        return msg.TokenReply.model_validate_json(plain).secret

    def refusal(self, code: PairingCode, **how: str) -> MeshnetError:
        with pytest.raises(MeshnetError) as caught:
            self.pair(code, **how)
        self.now += limits.BEGIN_SECONDS / limits.BEGINS
        return caught.value


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_machine_with_the_code_gets_a_token_for_itself_alone(desk):
    assert desk.pair(desk.code()) == "s1"
    assert desk.issued == [msg.TokenRequest(seconds=120, uses=1)]


def test_without_a_code_nobody_is_answered(desk):
    error = desk.refusal(WRONG)
    assert isinstance(error, UnauthenticatedError)
    assert (error.details["field"], "meshnet token --pair" in error.message) == ("code", True)


def test_a_code_lets_so_many_machines_in_and_no_more(desk):
    code = desk.code(uses=2)
    assert [desk.pair(code), desk.pair(code)] == ["s1", "s2"]
    assert desk.refusal(code).details["field"] == "code"


def test_a_code_is_over_with_its_time_also_for_who_began_before(desk):
    code = desk.code(seconds=60)
    desk.now += 59.0
    shown, _ = desk.begin(code)
    desk.now += 1.0
    with pytest.raises(UnauthenticatedError, match="no pairing code is good") as caught:
        desk.pairing.prove("10.0.0.9", shown)
    assert caught.value.details["field"] == "code"
    assert desk.refusal(code).details["field"] == "code"
    assert desk.issued == []


def test_the_fifth_wrong_try_ends_a_code_for_everybody_whoever_made_them(desk):
    code = desk.code()
    for left in ("tries left: 4", "tries left: 3", "tries left: 2", "tries left: 1", "over"):
        error = desk.refusal(WRONG, peer=f"10.0.0.{left[-1]}")
        assert (error.details["field"], left in error.message) == ("proof", True)
    assert desk.refusal(code).details["field"] == "code"
    assert desk.issued == []


def test_many_exchanges_at_once_give_no_more_than_five_tries(desk):
    code = desk.code()
    waiting = []
    for number in range(2 * limits.MOST_WRONG):
        desk.now += limits.BEGIN_SECONDS / limits.BEGINS
        waiting.append((f"10.0.0.{number}", desk.begin(WRONG, f"10.0.0.{number}")[0]))
    said = []
    for peer, shown in waiting:
        with pytest.raises(UnauthenticatedError) as caught:
            desk.pairing.prove(peer, shown)
        said.append(caught.value.details["field"])
    assert said.count("proof") == limits.MOST_WRONG
    assert desk.refusal(code).details["field"] == "code"


def test_a_new_code_takes_the_place_of_the_old_one_and_has_all_its_tries(desk):
    old = desk.code()
    began, _ = desk.begin(old)
    for _ in range(limits.MOST_WRONG - 1):
        desk.refusal(WRONG)
    new = desk.code()
    with pytest.raises(UnauthenticatedError, match="exchange is over"):
        desk.pairing.prove("10.0.0.9", began)
    assert "tries left: 4" in desk.refusal(old).message
    assert desk.pair(new) == "s1"


def test_another_authority_than_the_trackers_is_a_wrong_try(desk):
    assert desk.refusal(desk.code(), authority="b" * 64).details["field"] == "proof"


def test_a_proof_is_taken_once_from_who_began_and_in_time(desk):
    code = desk.code()
    shown, _ = desk.begin(code)
    with pytest.raises(UnauthenticatedError, match="exchange is over"):
        desk.pairing.prove("10.0.0.8", shown)
    desk.pairing.prove("10.0.0.9", shown)
    with pytest.raises(UnauthenticatedError, match="exchange is over"):
        desk.pairing.prove("10.0.0.9", shown)
    late, _ = desk.begin(code)
    desk.now += limits.EXCHANGE_SECONDS
    with pytest.raises(UnauthenticatedError, match="exchange is over"):
        desk.pairing.prove("10.0.0.9", late)
    assert len(desk.issued) == 1


def test_a_proof_of_an_earlier_exchange_is_wrong_in_another(desk):
    code = desk.code()
    shown, _ = desk.begin(code)
    desk.pairing.prove("10.0.0.9", shown)
    other, _ = desk.begin(code)
    with pytest.raises(UnauthenticatedError, match="isn't the code"):
        desk.pairing.prove("10.0.0.9", other.model_copy(update={"proof": shown.proof}))


def test_an_address_has_one_exchange_and_beginning_again_costs_no_try(desk):
    code = desk.code()
    first, _ = desk.begin(code)
    second, _ = desk.begin(code)
    with pytest.raises(UnauthenticatedError, match="exchange is over"):
        desk.pairing.prove("10.0.0.9", first)
    desk.pairing.prove("10.0.0.9", second)


def test_so_many_may_begin_in_a_while(desk):
    code = desk.code(seconds=3600)
    for number in range(limits.BEGINS):
        desk.begin(code, f"10.0.0.{number}")
    with pytest.raises(ResourceExhaustedError, match="wait some seconds"):
        desk.begin(code)
    desk.now += limits.BEGIN_SECONDS
    for number in range(limits.BEGINS):
        desk.begin(code, f"10.0.1.{number}")
    desk.now += limits.BEGIN_SECONDS - 0.1
    with pytest.raises(ResourceExhaustedError):
        desk.begin(code)
    desk.now += 0.1
    assert desk.pair(code) == "s1"


def test_what_is_no_message_costs_no_try_and_leaves_nothing(desk):
    code = desk.code()
    for _ in range(limits.MOST_WRONG + 1):
        with pytest.raises(InvalidArgumentError, match="message"):
            desk.pairing.begin("10.0.0.9", pm.PairRequest(message="41" + "00" * 32))
        desk.now += limits.BEGIN_SECONDS
    assert desk.pair(code) == "s1"


def test_a_token_that_could_not_be_made_uses_nothing_up(desk):
    code = desk.code(uses=1)
    desk.full = True
    assert desk.refusal(code).message == "no room"
    desk.full = False
    assert desk.pair(code) == "s1"


def test_a_code_counts_uses_and_wrong_tries_apart():
    code = OpenCode(WRONG, until=10.0, uses=2)
    assert code.is_good(9.9)
    assert not code.is_good(10.0)
    assert code.used().guessed().is_good(0.0)
    assert not code.used().used().is_good(0.0)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (pm.PairRequest, "message", "41" * 32),
        (pm.PairRequest, "message", "4G" + "00" * 32),
        (pm.ProofRequest, "proof", "0" * 63),
        (pm.ProofRequest, "exchange", "1" * 31),
        (pm.CodeRequest, "uses", 51),
        (pm.CodeRequest, "seconds", 3601),
        (pm.ProofReply, "sealed", "0" * 4096),
    ],
)
def test_messages_out_of_bounds_are_refused_by_field(kind, field, value):
    good: dict[str, object] = {"message": "41" * 33, "exchange": "1" * 32, "proof": "0" * 64}
    given = {name: good[name] for name in kind.model_fields if name in good} | {field: value}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(given)
    assert [it["loc"] for it in caught.value.errors()] == [(field,)]
