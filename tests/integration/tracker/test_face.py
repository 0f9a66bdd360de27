"""The tracker's HTTPS port as machines, admins and strangers find it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from meshnet.domain.errors import (
    InvalidArgumentError,
    StaleEpochError,
    UnauthenticatedError,
)
from meshnet.domain.ids import NodeId
from meshnet.tracker import face_server
from meshnet.tracker import messages as msg
from meshnet.tracker.asking import (
    MAX_RELAYED,
    MAX_TOLD,
    RelayReply,
    RelayRequest,
    RouteReply,
    RouteRequest,
)
from meshnet.tracker.client import TrackerClient, join
from meshnet.tracker.face_ready import PunctualProtocol
from meshnet.tracker.logmessages import LogChunk, LogLine
from meshnet.tracker.measurements import MAX_RUN_NODES, MAX_RUNS, RunReport
from meshnet.transport.certificates import Authority, Role, new_key, public_key_of
from meshnet.transport.jointoken import JoinToken, new_secret
from meshnet.transport.tls import Identity, client_context, joining_context
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.trackers import DIGEST, MACHINE

WEIGHTS = bytes(range(256)) * 400
BEAT = msg.HeartbeatRequest(incarnation=1, machine=MACHINE)
ROUTES = (
    ("POST", "/renew"),
    ("POST", "/heartbeat"),
    ("GET", "/status"),
    ("POST", "/routes"),
    ("POST", "/relay"),
    ("POST", "/logs"),
    ("POST", "/receipts"),
    ("POST", "/nodes/abc/logs"),
    ("POST", "/nodes/abc/drain"),
    ("POST", "/nodes/abc/remove"),
    ("POST", "/tokens"),
    ("DELETE", "/tokens/abc"),
    ("GET", f"/models/{DIGEST}/manifest"),
    ("GET", f"/models/{DIGEST}/files/m.gguf"),
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/join"),
    ("OPTIONS", "/status"),
    ("HEAD", "/status"),
)


@pytest.fixture
async def tracker(tmp_path) -> AsyncIterator[LiveTracker]:
    (tmp_path / "m.gguf").write_bytes(WEIGHTS)
    async with live_tracker(Files(tmp_path / "m.gguf")) as made:
        yield made


@asynccontextmanager
async def http(tracker: LiveTracker, context: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    base = f"https://{tracker.address}"
    async with httpx.AsyncClient(base_url=base, verify=context, trust_env=False) as client:
        yield client


async def test_a_machine_joins_and_is_heard_from_then_on(tracker):
    identity = await tracker.join()
    async with TrackerClient(tracker.address, identity) as client:
        reply = await client.heartbeat(BEAT)
        assert reply.lease_seconds > reply.heartbeat_seconds > 0
        (machine,) = (await client.status()).machines
        assert (machine.node_id, machine.name) == (identity.node_id, "one")
        assert machine.state is msg.MachineState.SPARE
        key = public_key_of(identity.key_pem).decode()
        renewed = await client.renew(msg.RenewRequest(public_key=key))
    again = Identity(identity.key_pem, renewed.certificate.encode(), identity.authority_pem)
    async with TrackerClient(tracker.address, again) as client:
        await client.heartbeat(BEAT)


async def test_tokens_that_are_not_good_let_nobody_in(tracker):
    key = new_key()
    late = tracker.service.issue_token(msg.TokenRequest(seconds=5)).secret
    revoked = tracker.service.issue_token(msg.TokenRequest())
    tracker.service.revoke_token(revoked.token_id)
    tracker.clock[0] += 10
    for secret in (new_secret(), late, revoked.secret):
        with pytest.raises(UnauthenticatedError, match="token"):
            await join(tracker.token(secret), key, "one")
    assert tracker.service.status().machines == ()


async def test_a_token_of_another_cluster_sends_no_secret(tracker):
    secret = tracker.service.issue_token(msg.TokenRequest(uses=1)).secret
    other = Authority.create("other").fingerprint
    with pytest.raises(UnauthenticatedError, match="isn't the one that the token is for"):
        await join(JoinToken(tracker.address, other, secret, 2**40), new_key(), "x")
    assert tracker.service.status().tokens[0].uses == 1


async def test_without_a_certificate_nothing_but_joining_answers(tracker):
    async with http(tracker, joining_context(tracker.authority.certificate_pem)) as client:
        for method, path in ROUTES:
            response = await client.request(method, path, content=b"{}")
            assert response.status_code in (401, 405), (method, path)
            assert (method, path) == ("GET", "/join") or response.status_code == 401
        assert (await client.get("/authority")).content == tracker.authority.certificate_pem


async def test_a_certificate_of_another_cluster_ends_the_connection(tracker, tmp_path):
    stranger = tracker.identity(authority=Authority.create("other"))
    shown = tmp_path / "stranger.pem"
    shown.write_bytes(stranger.key_pem + stranger.certificate_pem)
    context = joining_context(tracker.authority.certificate_pem)
    context.load_cert_chain(shown)
    async with http(tracker, context) as client:
        for path in ("/status", "/authority"):
            with pytest.raises(httpx.TransportError):
                await client.get(path)


async def test_what_is_wrong_with_a_body_is_told_by_its_field(tracker):
    async with http(tracker, client_context(await tracker.join())) as client:
        good = BEAT.model_dump(mode="json")
        for change, field in (
            ({"incarnation": -1}, "incarnation"),
            ({"incarnation": "1"}, "incarnation"),
            ({"surprise": 1}, "surprise"),
            ({"machine": {**good["machine"], "cores": 0}}, "machine.cores"),
            ({"work": [{"model": "x"}]}, "work.0.model"),
            ({"round_trip_seconds": 1e300}, "round_trip_seconds"),
        ):
            response = await client.post("/heartbeat", json={**good, **change})
            assert (response.status_code, response.json()["field"]) == (400, field)
        for body in (b"", b"[]", b"{", b"\xff", b'{"incarnation":NaN}'):
            assert (await client.post("/heartbeat", content=body)).status_code == 400
        large = b" " * (msg.MAX_BODY_BYTES + 1)
        assert (await client.post("/heartbeat", content=large)).status_code == 413
    assert tracker.service.status().machines[0].machine is None


async def test_each_role_may_do_its_own_part(tracker):
    node, other = await tracker.join(), await tracker.join()
    async with TrackerClient(tracker.address, node) as client:
        await client.heartbeat(BEAT)
        await client.tell(node.node_id, "drain")
        await client.tell(node.node_id, "undrain")
        for refused in (
            client.tell(other.node_id, "drain"),
            client.issue_token(msg.TokenRequest()),
            client.revoke_token("x"),
        ):
            with pytest.raises(UnauthenticatedError, match="admin"):
                await refused
    async with TrackerClient(tracker.address, tracker.identity(Role.GATEWAY)) as client:
        with pytest.raises(UnauthenticatedError, match="role node"):
            await client.heartbeat(BEAT)
    async with TrackerClient(tracker.address, tracker.identity(Role.ADMIN)) as client:
        status = await client.tell(other.node_id, "drain")
        assert [it.node_id for it in status.machines if it.drained] == [other.node_id]
        made = await client.issue_token(msg.TokenRequest(uses=1))
        await client.revoke_token(made.token_id)
        with pytest.raises(InvalidArgumentError, match="no machine 'nobody'"):
            await client.tell(NodeId("nobody"), "drain")
        with pytest.raises(InvalidArgumentError, match="can be told"):
            await client.tell(other.node_id, "explode")


async def test_a_gateway_gets_chains_and_whoever_runs_the_relay_who_may_wait(tracker):
    node = await tracker.join()
    route, relay = RouteRequest(model=DIGEST), RelayRequest(carried=(node.node_id,))
    async with TrackerClient(tracker.address, tracker.identity(Role.GATEWAY)) as client:
        assert "layers [0, 6)" in (await client.route(route)).problem
        with pytest.raises(UnauthenticatedError, match="role admin"):
            await client.relay(relay)
    async with TrackerClient(tracker.address, tracker.identity(Role.ADMIN)) as client:
        assert (await client.relay(relay)).members == (node.node_id,)
        with pytest.raises(UnauthenticatedError, match="role gateway"):
            await client.route(route)


async def test_a_gateway_that_tells_as_much_as_it_may_is_heard(tracker):
    nodes = tuple(f"{number:016x}" for number in range(MAX_RELAYED))
    told = nodes[:MAX_TOLD]
    run = RunReport(
        model=DIGEST,
        nodes=nodes[:MAX_RUN_NODES],
        prompt_tokens=1,
        tokens=1,
        first_seconds=0.1,
        rest_seconds=0.1,
    )
    async with (
        TrackerClient(tracker.address, tracker.identity(Role.GATEWAY)) as gateway,
        TrackerClient(tracker.address, tracker.identity(Role.ADMIN)) as admin,
    ):
        full = RouteRequest(took=told, worked=told, erred=told, runs=(run,) * MAX_RUNS)
        assert await gateway.route(full) == RouteReply()
        assert await admin.relay(RelayRequest(waiting=nodes, carried=nodes)) == RelayReply()


async def test_lines_of_a_log_get_from_a_machine_to_who_wants_them(tracker):
    node = await tracker.join()
    line = LogLine(at=17, level="INFO", process="agent", text="fetching layers")
    async with (
        TrackerClient(tracker.address, node) as machine,
        TrackerClient(tracker.address, tracker.identity(Role.ADMIN)) as admin,
    ):
        assert (await machine.heartbeat(BEAT)).logs_after is None
        assert not (await admin.logs(node.node_id, 0)).lines
        assert (await machine.heartbeat(BEAT)).logs_after == 0
        await machine.send_logs(LogChunk(lines=(line,)))
        assert (await admin.logs(node.node_id, 0)).lines == (line,)
        assert (await machine.heartbeat(BEAT)).logs_after == 17
        with pytest.raises(InvalidArgumentError, match="no machine 'nobody'"):
            await admin.logs(NodeId("nobody"), 0)
        with pytest.raises(UnauthenticatedError, match="role admin"):
            await machine.logs(node.node_id, 0)
        with pytest.raises(UnauthenticatedError, match="role node"):
            await admin.send_logs(LogChunk(lines=(line,)))


async def test_a_removed_machine_gets_nothing_any_more(tracker):
    identity = await tracker.join()
    tracker.service.remove(identity.node_id)
    async with TrackerClient(tracker.address, identity) as client:
        for refused in (client.heartbeat(BEAT), client.status()):
            with pytest.raises(UnauthenticatedError, match="removed"):
                await refused
    async with http(tracker, client_context(identity)) as client:
        assert (await client.get(f"/models/{DIGEST}/files/m.gguf")).status_code == 403


async def test_an_agent_that_was_replaced_is_told_so(tracker):
    async with TrackerClient(tracker.address, await tracker.join()) as client:
        await client.heartbeat(BEAT.model_copy(update={"incarnation": 2}))
        with pytest.raises(StaleEpochError):
            await client.heartbeat(BEAT)


async def test_weights_come_by_range(tracker):
    async with http(tracker, client_context(await tracker.join())) as client:
        file = f"/models/{DIGEST}/files/m.gguf"
        some = await client.get(file, headers={"range": "bytes=1000-1999"})
        assert (some.status_code, some.content) == (206, WEIGHTS[1000:2000])
        assert some.headers["content-range"] == f"bytes 1000-1999/{len(WEIGHTS)}"
        assert (await client.get(f"/models/{DIGEST}/manifest")).json() == {"manifest": True}
        for path in (
            f"/models/{DIGEST}/files/other.gguf",
            f"/models/{DIGEST}/files/..%2f..%2fetc%2fpasswd",
            "/models/sha256:0/manifest",
        ):
            assert (await client.get(path)).status_code == 404


async def test_a_peer_that_says_nothing_holds_up_nobody(tracker):
    identity = await tracker.join()
    _, silent = await asyncio.open_connection("127.0.0.1", int(tracker.address.split(":")[1]))
    async with asyncio.timeout(2), TrackerClient(tracker.address, identity) as client:
        await client.status()
    silent.transport.abort()


async def stranger(tracker: LiveTracker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = joining_context(tracker.authority.certificate_pem)
    host, port = tracker.address.split(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


async def asked(tracker: LiveTracker) -> bytes:
    """All that a peer without a certificate gets until the connection ends."""
    try:
        reader, writer = await stranger(tracker)
        writer.write(b"GET /authority HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
    except OSError:
        return b""
    writer.transport.abort()
    return answer


async def test_a_peer_without_a_certificate_asks_once_for_each_connection(tracker):
    async with asyncio.timeout(3):
        answer = await asked(tracker)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()


async def test_a_machine_that_does_not_finish_its_next_request_is_sent_away(tracker, monkeypatch):
    monkeypatch.setattr(PunctualProtocol, "next_request_seconds", 0.3)
    context = client_context(await tracker.join())
    host, port = tracker.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    async with asyncio.timeout(5):
        for _ in range(2):
            writer.write(b"GET /authority HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.readuntil(b"END CERTIFICATE-----\n")
            assert answer.startswith(b"HTTP/1.1 200")
        writer.write(b"G")
        while await reader.read(1000):
            pass
    writer.transport.abort()


async def test_strangers_leave_connections_for_machines(tracker, monkeypatch):
    identity = await tracker.join()
    monkeypatch.setattr(face_server, "MOST_STRANGERS", 2)
    held = [await stranger(tracker) for _ in range(2)]
    async with asyncio.timeout(5):
        assert not await asked(tracker)
        async with TrackerClient(tracker.address, identity) as client:
            await client.heartbeat(BEAT)
        held[0][1].transport.abort()
        while not await asked(tracker):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    held[1][1].transport.abort()


async def test_a_peer_that_asks_for_nothing_is_sent_away_in_the_end(tracker, monkeypatch):
    monkeypatch.setattr(PunctualProtocol, "first_request_seconds", 0.2)
    context = joining_context(tracker.authority.certificate_pem)
    host, port = tracker.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(b"GET /authority HTTP/1.1\r\nHost: x\r\n")
    async with asyncio.timeout(3):
        assert await reader.read() == b""
    writer.transport.abort()
