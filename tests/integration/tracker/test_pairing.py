"""Machines that have the code, machines that haven't, and somebody who stands in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from meshnet.domain.errors import (
    InvalidArgumentError,
    NodeNotReadyError,
    NodeUnreachableError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address
from meshnet.gateway.server import open_listener
from meshnet.tracker import client as client_module
from meshnet.tracker import face
from meshnet.tracker import pairing_messages as pm
from meshnet.tracker.client import TrackerClient, join, pair
from meshnet.tracker.face_server import face_served
from meshnet.transport.certificates import Authority, Role, new_key, node_id_of, public_key_of
from meshnet.transport.pairing import PairingCode, PairingSide
from meshnet.transport.tls import Identity, joining_context, server_context
from tests.support.live_tracker import Files, LiveTracker, live_tracker

WRONG = PairingCode("000000")


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(face, "PAIR_SECONDS", 0.0)


@pytest.fixture
async def tracker(tmp_path) -> AsyncIterator[LiveTracker]:
    async with live_tracker(Files(tmp_path)) as made:
        yield made


@pytest.fixture
def code(tracker) -> PairingCode:
    return new_code(tracker)


def new_code(tracker: LiveTracker) -> PairingCode:
    return PairingCode.parse(tracker.service.pairing.renew(pm.CodeRequest()).code)


def stranger(tracker: LiveTracker) -> httpx.AsyncClient:
    context = joining_context(tracker.authority.certificate_pem)
    return httpx.AsyncClient(
        base_url=f"https://{tracker.address}", verify=context, trust_env=False, timeout=5.0
    )


async def test_the_code_gives_a_token_with_which_one_machine_joins(tracker, code):
    token = await pair([tracker.address], code)
    assert (token.address, token.fingerprint) == (tracker.address, tracker.authority.fingerprint)
    reply, authority = await join(token, new_key(), "desk")
    assert (reply.cluster, authority) == ("test", tracker.authority.certificate_pem)
    with pytest.raises(UnauthenticatedError, match="token"):
        await join(token, new_key(), "lamp")
    assert [it.name for it in tracker.service.status().machines] == ["desk"]


async def test_a_wrong_code_is_told_and_the_fifth_ends_the_right_one(tracker, code):
    for tries in ("tries left: 4", "tries left: 3", "tries left: 2", "tries left: 1", "over"):
        with pytest.raises(UnauthenticatedError, match=tries) as caught:
            await pair([tracker.address], WRONG)
        assert caught.value.details["field"] == "proof"
    with pytest.raises(UnauthenticatedError, match="token --pair") as caught:
        await pair([tracker.address], code)
    assert caught.value.details["field"] == "code"
    assert tracker.service.status().tokens == ()


async def test_an_admin_alone_makes_codes(tracker):
    async with TrackerClient(tracker.address, tracker.identity(Role.ADMIN)) as admin:
        made = await admin.new_code(pm.CodeRequest(seconds=60, uses=1))
        assert (made.seconds, made.uses) == (60, 1)
        await pair([tracker.address], PairingCode.parse(made.code))
    async with TrackerClient(tracker.address, await tracker.join()) as node:
        with pytest.raises(UnauthenticatedError, match="admin"):
            await node.new_code(pm.CodeRequest())
    async with stranger(tracker) as nobody:
        assert (await nobody.post(pm.PATH_CODE, content=b"{}")).status_code == 401
        assert (await nobody.get(pm.PATH_PAIR)).status_code == 401


async def test_what_was_sent_once_is_of_no_use_again(tracker, code, monkeypatch):
    sent: list[tuple[str, bytes]] = []
    ask = client_module._Connection.send

    async def overheard(self, method, path, body=None):
        sent.append((path, body.model_dump_json().encode()))
        return await ask(self, method, path, body)

    monkeypatch.setattr(client_module._Connection, "send", overheard)
    await pair([tracker.address], code)
    assert [path for path, _ in sent] == [pm.PATH_PAIR, pm.PATH_PROVE]
    async with stranger(tracker) as client:
        again = await client.post(pm.PATH_PROVE, content=sent[1][1])
        assert (again.status_code, again.json()["field"]) == (403, "exchange")
        begun = (await client.post(pm.PATH_PAIR, content=sent[0][1])).json()
        proof = pm.ProofRequest.model_validate_json(sent[1][1]).proof
        shown = {"exchange": begun["exchange"], "proof": proof}
        wrong = await client.post(pm.PATH_PROVE, json=shown)
        assert (wrong.status_code, wrong.json()["field"]) == (403, "proof")


async def test_bodies_are_bounded_and_refused_by_field(tracker, code):
    async with stranger(tracker) as client:
        large = await client.post(pm.PATH_PAIR, content=b" " * (pm.MAX_BODY_BYTES + 1))
        assert large.status_code == 413
        for path, body, field in (
            (pm.PATH_PAIR, {"message": "41"}, "message"),
            (pm.PATH_PAIR, {"message": "41" + "00" * 32}, "message"),
            (pm.PATH_PAIR, {"message": "41" * 33, "more": 1}, "more"),
            (pm.PATH_PROVE, {"exchange": "1", "proof": "0" * 64}, "exchange"),
        ):
            response = await client.post(path, json=body)
            assert (response.status_code, response.json()["field"]) == (400, field)
    await pair([tracker.address], code)


async def test_every_beginning_takes_the_same_time(tracker, monkeypatch):
    monkeypatch.setattr(face, "PAIR_SECONDS", 0.2)
    good = {"message": PairingSide.machine(WRONG, tracker.authority.fingerprint).message.hex()}
    async with stranger(tracker) as client:
        for opened, body, status in (
            (False, good, 403),
            (True, good, 200),
            (True, {"message": "41" + "00" * 32}, 400),
        ):
            if opened:
                new_code(tracker)
            began = time.monotonic()
            assert (await client.post(pm.PATH_PAIR, json=body)).status_code == status
            assert 0.2 <= time.monotonic() - began < 5.0


async def test_a_tracker_is_found_at_the_first_place_where_it_answers(tracker, code):
    with open_listener("127.0.0.1", 0) as listener:
        nobody = Address(f"127.0.0.1:{listener.getsockname()[1]}")
    places = (nobody, tracker.address, nobody)
    assert (await pair(places, code)).address == tracker.address


async def test_where_no_tracker_answers_is_said_in_time(tracker):
    listener = open_listener("127.0.0.1", 0)
    with listener:
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(NodeUnreachableError, match=r"within 0\.2 s"):
            await pair([address], WRONG, contact_seconds=0.2)
    with pytest.raises(NodeUnreachableError):
        await pair([address], WRONG)


class Between:
    """Somebody on the network in the tracker's place, with an authority of his own."""

    def __init__(self, tracker: LiveTracker) -> None:
        self.authority = Authority.create("test")
        self.tracker = tracker
        self.answers: dict[str, Response | Callable[[bytes], Response]] = {}
        """What he says himself, by path; everything else he passes on."""

    async def pass_on(self, request: Request) -> Response:
        body = await request.body()
        answer = self.answers.get(request.url.path)
        if answer is not None:
            return answer if isinstance(answer, Response) else answer(body)
        async with stranger(self.tracker) as client:
            told = await client.request(request.method, request.url.path, content=body)
        return Response(told.content, told.status_code)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        key = new_key()
        public = public_key_of(key)
        shown = self.authority.issue(public, node_id_of(public), role=Role.TRACKER)
        identity = Identity(key, shown, self.authority.certificate_pem)
        listener = open_listener("127.0.0.1", 0)
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
        self.answers.setdefault("/authority", Response(self.authority.certificate_pem))
        app = Starlette(routes=[Route("/{p:path}", self.pass_on, methods=["GET", "POST"])])
        async with face_served(app, listener, server_context(identity)):
            yield address


@pytest.fixture
def between(tracker) -> Between:
    return Between(tracker)


async def test_who_passes_everything_on_under_another_certificate_gets_nothing(
    tracker, code, between
):
    async with between.listening() as address:
        with pytest.raises(UnauthenticatedError, match="isn't the code") as caught:
            await pair([address], code)
    assert caught.value.details["field"] == "proof"
    assert tracker.service.status().tokens == ()
    await pair([tracker.address], code)


async def test_who_gives_the_right_certificate_but_has_not_its_key_hears_nothing(
    tracker, code, between
):
    between.answers["/authority"] = Response(tracker.authority.certificate_pem)
    heard: list[bytes] = []

    def hear(body: bytes) -> Response:
        heard.append(body)
        return Response(b"{}")

    between.answers[pm.PATH_PAIR] = hear
    async with between.listening() as address:
        with pytest.raises(NodeUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            await pair([address], code)
    assert heard == []


async def test_who_claims_that_a_code_was_right_is_not_believed(tracker, code, between):
    proofs: list[str] = []

    def guess(body: bytes) -> Response:
        side = PairingSide.tracker(WRONG, between.authority.fingerprint)
        keys = side.finish(bytes.fromhex(pm.PairRequest.model_validate_json(body).message))
        proofs.append(keys.tracker_proof.hex())
        reply = pm.PairReply(exchange="1" * 32, message=side.message.hex())
        return Response(reply.model_dump_json())

    def yes(_body: bytes) -> Response:
        return Response(pm.ProofReply(proof=proofs[0], sealed="00" * 40).model_dump_json())

    between.answers |= {pm.PATH_PAIR: guess, pm.PATH_PROVE: yes}
    async with between.listening() as address:
        with pytest.raises(UnauthenticatedError, match="doesn't have the code either"):
            await pair([address], code)


async def test_who_breaks_off_after_a_guess_gets_no_second_one_at_another_place(
    tracker, code, between, monkeypatch
):
    monkeypatch.setattr(client_module, "PAIR_SECONDS", 0.2)
    guesses: list[bytes] = []

    class Silence(Response):
        async def __call__(self, scope, receive, send):
            await asyncio.sleep(0.4)

    def guess(body: bytes) -> Response:
        guesses.append(body)
        return Silence()

    between.answers[pm.PATH_PAIR] = guess
    async with between.listening() as address:
        with pytest.raises(NodeUnreachableError, match=r"within 0\.2 s"):
            await pair([address, address, tracker.address], code)
    assert len(guesses) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Response(b"x" * (pm.MAX_REPLY_BYTES + 1)), "more than 8192 bytes"),
        (Response(b"{}"), "answered POST /pair with something else: exchange"),
        (Response(b'{"exchange": 1, "\\u001b[2J": 1}'), r"exchange|\?\[2J"),
        (Response(b"", 500), "HTTP status 500"),
    ],
)
async def test_an_answer_of_a_stranger_is_bounded(between, answer, problem):
    between.answers[pm.PATH_PAIR] = answer
    async with between.listening() as address:
        with pytest.raises(NodeNotReadyError, match=problem) as caught:
            await pair([address], WRONG)
    assert "\x1b" not in caught.value.message


async def test_a_strangers_words_do_not_steer_the_terminal(between):
    told = b'{"code": "http", "message": "\\u001b[2Jwiped", "field": "code"}'
    async with between.listening() as address:
        for status, error in ((403, UnauthenticatedError), (400, InvalidArgumentError)):
            between.answers[pm.PATH_PAIR] = Response(told, status)
            with pytest.raises(error, match=r"\?\[2Jwiped"):
                await pair([address], WRONG)


async def test_a_stranger_that_answers_slowly_is_left_in_time(between, monkeypatch):
    monkeypatch.setattr(client_module, "PAIR_SECONDS", 0.2)

    class Slowly(Response):
        async def __call__(self, scope, receive, send):
            await asyncio.sleep(0.4)
            await super().__call__(scope, receive, send)

    between.answers[pm.PATH_PAIR] = Slowly(b"{}")
    async with between.listening() as address:
        with pytest.raises(NodeUnreachableError, match=r"within 0\.2 s"):
            await pair([address], WRONG)
