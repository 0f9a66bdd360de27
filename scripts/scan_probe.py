"""Knocks at ports without any credentials: what `scripts/scan_netns.py` runs where nobody is known.

Reads a JSON object from standard input: ``hosts``, ``node`` (a node's id), ``digest``, ``part``;
writes one: ``open`` (host to ports) and ``answers`` (a list of host, port, way, route, answer).
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

import grpc.aio
from grpc.aio import Channel
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from starlette.routing import Route

from meshnet.domain.errors import MeshnetError, UnauthenticatedError
from meshnet.domain.ids import Address
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.machines import Machines
from meshnet.session.service import ModelService
from meshnet.tracker.client import pair
from meshnet.tracker.face import Weights, create_face
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import Authority, Role, new_key, node_id_of, public_key_of
from meshnet.transport.methods import SERVICE_NAME
from meshnet.transport.pairing import PairingCode
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

PORTS: Final = range(1, 65_536)
CONNECTIONS: Final = 400
CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 4.0
AT_ONCE: Final = 6
PLAIN, TLS, FORGED = "plain text", "TLS, no certificate", "TLS, a certificate of its own making"
WAYS: Final = (PLAIN, TLS, FORGED)
CLOSED: Final = "closed"
"""The connection ended without a byte of an answer."""
HANDSHAKE: Final = "no handshake"
REFUSED: Final = "refused"
"""By the protocol that is spoken, with a reason and nothing else."""
SECRET: Final = "a-secret-that-nobody-gave-out"  # noqa: S105 - it opens nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: an HTTP status, gRPC's name for one, or how the connection ended."""

    host: str
    port: int
    way: str
    route: str
    answer: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One request over HTTP/1.1."""

    method: str
    path: str
    body: bytes = b""

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"

    def encoded(self, host: str) -> bytes:
        head = [
            f"{self.method} {self.path} HTTP/1.1",
            f"Host: {host}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
        ]
        return "\r\n".join([*head, "", ""]).encode() + self.body


def gateway_routes() -> list[Asked]:
    """All that the API's process answers, its dashboard included."""

    class Model:
        name = "m"

    models = [cast("ModelService", Model())]
    app = create_app(models, GatewayConfig(), machines=cast("Machines", _Machines()))
    return _routes_of(app.routes)


class _Machines:
    operations = frozenset[str]()


def tracker_routes() -> list[Asked]:
    """All that the tracker answers."""
    service, weights = cast("TrackerService", _Anything()), cast("Weights", _Anything())
    return _routes_of(create_face(service, weights, b"").routes)


class _Anything:
    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def _routes_of(routes: object) -> list[Asked]:
    return [
        Asked(method, route.path, b"{}" if method == "POST" else b"")
        for route in cast("list[object]", routes)
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def all_routes(node: str, digest: str, part: str) -> list[Asked]:
    """Every route of every process, with names that are there put into them."""
    named = {"node": node, "node_id": node, "digest": digest, "token": "x", "rest": "admin"}
    found: dict[str, Asked] = {}
    slices = [
        Asked("GET", f"/slices/{digest.removeprefix('sha256:')}/0-1"),
        Asked("GET", "/"),
    ]
    for asked in [*gateway_routes(), *tracker_routes(), *slices]:
        named["name"] = part if "/files/" in asked.path else "m"
        for verb in ("drain", "undrain", "remove") if "{verb}" in asked.path else ("",):
            path = _filled(asked.path, named | {"verb": verb})
            made = Asked(asked.method, path, asked.body)
            found[made.route] = made
    return list(found.values())


def _filled(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda match: values[match[1]], path)


def forged_join() -> Asked:
    """Well-formed, with a secret that nobody gave out."""
    from meshnet.transport.jointoken import join_proof

    key = new_key()
    body = {
        "secret": SECRET,
        "public_key": public_key_of(key).decode(),
        "name": "stranger",
        "proof": join_proof(key, SECRET, "stranger"),
    }
    return Asked("POST", "/join", json.dumps(body).encode())


def grpc_methods() -> list[str]:
    """Every call of the services on a node's port."""
    names = [
        f"/{SERVICE_NAME}/{method.name}"
        for method in pb.DESCRIPTOR.services_by_name["ShardRuntime"].methods
    ]
    others = (
        (health.SERVICE_NAME, ("Check", "Watch")),
        (
            reflection.SERVICE_NAME,
            ("ServerReflectionInfo",),
        ),
    )
    return [*names, *(f"/{service}/{name}" for service, calls in others for name in calls)]


async def open_ports(host: str) -> list[int]:
    """The ports at which a connection comes about."""
    gate = asyncio.Semaphore(CONNECTIONS)

    async def is_open(port: int) -> bool:
        async with gate:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError):
                return False
            writer.transport.abort()
            return True

    found = await asyncio.gather(*map(is_open, PORTS))
    return [port for port, there in zip(PORTS, found, strict=True) if there]


class Prober:
    """Asks for routes over the ways that somebody without credentials has."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        """``names``: the servers that a TLS hello may name."""
        self._names = names
        self._contexts = {TLS: _context(), FORGED: _context()}
        authority, key = Authority.create("forged"), new_key()
        public = public_key_of(key)
        certificate = authority.issue(public, node_id_of(public), role=Role.ADMIN)
        self._forged = (key, certificate)
        for file, text in (("key.pem", key), ("certificate.pem", certificate)):
            (folder / file).write_bytes(text)
        paths = (folder / "certificate.pem", folder / "key.pem")
        self._contexts[FORGED].load_cert_chain(*map(str, paths))
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def http(self, host: str, port: int, way: str, asked: Asked) -> list[Answer]:
        """One route, with each name in the hello; answers that differ by it are told apart."""
        names = self._names[:1] if way == PLAIN else self._names
        said = {name: await self._http(host, port, way, asked, name) for name in names}
        if len(set(said.values())) == 1:
            return [Answer(host, port, way, asked.route, said[names[0]])]
        return [
            Answer(host, port, f"{way}, to {name}", asked.route, answer)
            for name, answer in said.items()
        ]

    async def _http(self, host: str, port: int, way: str, asked: Asked, name: str) -> str:
        context = self._contexts.get(way)
        async with self._gate:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        host, port, ssl=context, server_hostname=name if context else None
                    )
            except (ssl.SSLError, ConnectionError, TimeoutError, OSError):
                return HANDSHAKE if context else CLOSED
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    writer.write(asked.encoded(host))
                    return _status(await reader.read(64))
            except (ssl.SSLError, ConnectionError):
                return CLOSED
            except TimeoutError:
                return "silence"
            finally:
                writer.transport.abort()

    async def grpc(self, host: str, port: int, way: str, authority: bytes) -> list[Answer]:
        """Every call of a node's services."""
        said = {}
        async with self._channel(host, port, way, authority) as channel:
            for method in grpc_methods():
                call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
                    method
                )
                try:
                    async for _ in call(iter([b""]), timeout=ANSWER_SECONDS / 2):
                        said[method] = "an answer"
                    said.setdefault(method, "OK")
                except grpc.aio.AioRpcError as error:
                    said.setdefault(method, error.code().name)
        return [Answer(host, port, way, f"gRPC {name}", answer) for name, answer in said.items()]

    def _channel(self, host: str, port: int, way: str, authority: bytes) -> Channel:
        address = f"{host}:{port}"
        if way == PLAIN:
            return grpc.aio.insecure_channel(address)
        key, certificate = self._forged if way == FORGED else (None, None)
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        options = [("grpc.ssl_target_name_override", self._names[-1])]
        return grpc.aio.secure_channel(address, credentials, options)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _status(head: bytes) -> str:
    match = re.match(rb"HTTP/1\.\d (\d{3})", head)
    if match is not None:
        return match[1].decode()
    return CLOSED if not head else f"bytes {head[:16].hex()}"


async def authority_of(hosts: list[str], ports: dict[str, list[int]]) -> bytes:
    """What the tracker tells everybody: the authority's certificate, to check others with."""
    context = _context()
    for host in hosts:
        for port in ports[host]:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        host, port, ssl=context, server_hostname="tracker.meshnet"
                    )
                    writer.write(Asked("GET", "/authority").encoded(host))
                    said = await reader.read()
                    writer.transport.abort()
            except (OSError, TimeoutError):
                continue
            if b"BEGIN CERTIFICATE" in said:
                return said.partition(b"\r\n\r\n")[2]
    return b""


async def guessed(host: str, port: int) -> Answer:
    """A whole pairing exchange, with a code that isn't the one."""
    try:
        await pair([Address(f"{host}:{port}")], PairingCode("000000"))
        answer = "let in"
    except UnauthenticatedError:
        answer = REFUSED
    except MeshnetError:
        answer = CLOSED
    return Answer(host, port, TLS, "POST /pair, /pair/prove with a guessed code", answer)


async def main() -> None:
    told = json.loads(sys.stdin.read())
    hosts = told["hosts"]
    ports = {host: await open_ports(host) for host in hosts}
    authority = await authority_of(hosts, ports)
    names = [Role.TRACKER.host_name, f"{told['node']}.meshnet"]
    routes = [*all_routes(told["node"], told["digest"], told["part"])]
    join = forged_join()
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory() as folder:
        prober = Prober(Path(folder), names)
        places = [(host, port, way) for host in hosts for port in ports[host] for way in WAYS]
        for host, port, way in places:
            asking = [prober.http(host, port, way, asked) for asked in routes]
            for found in await asyncio.gather(*asking):
                answers += found
            for each in await prober.http(host, port, way, join):
                route = "POST /join with a made-up token"
                answers.append(Answer(each.host, each.port, each.way, route, each.answer))
            answers += await prober.grpc(host, port, way, authority)
        for host, port in dict.fromkeys((host, port) for host, port, _ in places):
            answers.append(await guessed(host, port))
    print(json.dumps({"open": ports, "answers": [asdict(each) for each in answers]}))


if __name__ == "__main__":
    asyncio.run(main())
