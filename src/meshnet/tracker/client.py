"""Talks to the tracker: joins a cluster, and afterwards everything that a certificate allows."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import ValidationError

from meshnet.domain.errors import (
    CancelledError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    NodeUnreachableError,
    StaleEpochError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.printable import printable
from meshnet.tracker import asking
from meshnet.tracker import logmessages as lm
from meshnet.tracker import messages as msg
from meshnet.tracker import pairing_messages as pm
from meshnet.tracker import receiptmessages as rm
from meshnet.tracker.fields import Message
from meshnet.tracker.measurements import PATH_PROBE, Probe
from meshnet.tracker.offers import PATH_MODELS, ModelsReply
from meshnet.transport.certificates import fingerprint_of, public_key_of
from meshnet.transport.jointoken import JoinToken, join_proof
from meshnet.transport.pairing import PairingCode, PairingSide, same_proof
from meshnet.transport.tls import (
    Identity,
    authority_at,
    client_context,
    first_contact,
    joining_context,
)

ANSWER_SECONDS = 5.0
JOIN_SECONDS = 20.0
PAIR_SECONDS = 10.0
"""All of a pairing, after the first contact."""
MOST_ANSWER_BYTES = 64 << 20
"""Of any answer; no tracker has more to say."""
MOST_MESSAGE = 500
MANIFEST_SECONDS = 30.0
"""All of it; between two pieces no more than for any answer."""

MessageT = TypeVar("MessageT", bound=Message)


async def join(token: JoinToken, key_pem: bytes, name: str) -> tuple[msg.JoinReply, bytes]:
    """Show the token and get a certificate; also gives the authority's, which was checked.

    The private key ``key_pem`` stays here: what is sent is its public half, and a signature.
    Raises ``NodeUnreachableError``, :class:`UnauthenticatedError` for another cluster's tracker or
    a token that isn't good any more, and ``InvalidArgumentError`` for what the tracker refuses.
    """
    authority = await first_contact(token.address, token.fingerprint)
    request = msg.JoinRequest(
        secret=token.secret,
        public_key=public_key_of(key_pem).decode(),
        name=name,
        proof=join_proof(key_pem, token.secret, name),
    )
    async with _Connection(token.address, joining_context(authority), JOIN_SECONDS) as tracker:
        reply = await tracker.ask(msg.JoinReply, "POST", msg.PATH_JOIN, request)
    return reply, authority


async def pair(
    places: Sequence[Address], code: PairingCode, contact_seconds: float = 10.0
) -> JoinToken:
    """A token from a tracker that isn't known, by a short code that it shows to people.

    Of the tracker's ``places`` it is the first that answers within ``contact_seconds``, and no
    other one afterwards: whoever takes part in an exchange has made a guess at the code.

    What answers there is believed only if it has the same code, and if it has the authority whose
    certificate it gave. Raises ``NodeUnreachableError`` if no tracker answers in time,
    ``NodeNotReadyError`` if it is busy, and :class:`UnauthenticatedError` with
    ``details["field"]``: ``proof`` when the codes differ, ``code`` when none is good.
    """
    address, authority = await _answering(places, contact_seconds)
    fingerprint = fingerprint_of(authority)
    side = PairingSide.machine(code, fingerprint)
    context = joining_context(authority)
    try:
        async with (
            asyncio.timeout(PAIR_SECONDS),
            _Connection(address, context, PAIR_SECONDS, pm.MAX_REPLY_BYTES) as tracker,
        ):
            begun = await tracker.ask(
                pm.PairReply, "POST", pm.PATH_PAIR, pm.PairRequest(message=side.message.hex())
            )
            keys = side.finish(bytes.fromhex(begun.message))
            shown = pm.ProofRequest(exchange=begun.exchange, proof=keys.machine_proof.hex())
            reply = await tracker.ask(pm.ProofReply, "POST", pm.PATH_PROVE, shown)
    except TimeoutError:
        raise NodeUnreachableError(
            f"the tracker at {address} didn't answer within {PAIR_SECONDS:g} s"
        ) from None
    if not same_proof(bytes.fromhex(reply.proof), keys.tracker_proof):
        raise UnauthenticatedError(
            f"what answers at {address} doesn't have the code either", field="proof"
        )
    told = keys.unseal(bytes.fromhex(reply.sealed))
    made = _understood(msg.TokenReply, told, f"{address} answered {pm.PATH_PROVE}")
    return JoinToken(address, fingerprint, made.secret, made.expires_unix)


async def _answering(places: Sequence[Address], seconds: float) -> tuple[Address, bytes]:
    """The first place where a tracker answers, and the authority's certificate that it gives."""
    for place in places[:-1]:
        # The error of the last one tells of them all.
        with contextlib.suppress(NodeUnreachableError):
            return place, await authority_at(place, seconds)
    return places[-1], await authority_at(places[-1], seconds)


def fetch_manifest(url: str, context: ssl.SSLContext, stop: threading.Event) -> bytes:
    """A model's manifest; blocks, until ``stop`` is set (which may take a few seconds).

    Raises like :meth:`TrackerClient.status`, and :class:`CancelledError` when it is stopped.
    """
    address = Address(httpx.URL(url).netloc.decode())
    until = time.monotonic() + MANIFEST_SECONDS
    content = bytearray()
    try:
        with httpx.stream(
            "GET", url, verify=context, timeout=ANSWER_SECONDS, trust_env=False
        ) as response:
            for part in response.iter_bytes():
                if stop.is_set():
                    raise CancelledError("fetching was stopped")
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the manifest takes too long")
                content += part
    except httpx.HTTPError as error:
        raise _unreachable(address, error, MANIFEST_SECONDS) from error
    if response.is_success:
        return bytes(content)
    raise _refusal(address, httpx.Response(response.status_code, content=bytes(content)))


class _Connection:
    """Asks one tracker; every question has a deadline."""

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext,
        seconds: float,
        most_bytes: int = MOST_ANSWER_BYTES,
    ) -> None:
        self.address = address
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._http = self._opened(context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections."""
        await self._http.aclose()

    def _opened(self, context: ssl.SSLContext) -> httpx.AsyncClient:
        base = f"https://{self.address}"
        return httpx.AsyncClient(
            base_url=base, verify=context, timeout=self._seconds, trust_env=False
        )

    async def ask(
        self, kind: type[MessageT], method: str, path: str, body: Message | None = None
    ) -> MessageT:
        """One question; raises what :func:`join` lists, and ``NodeNotReadyError``."""
        response = await self.send(method, path, body)
        return _understood(kind, response.content, f"{self.address} answered {method} {path}")

    async def send(self, method: str, path: str, body: Message | None = None) -> httpx.Response:
        """The answer, if it is none of failure; raises like :meth:`ask`."""
        content = None if body is None else body.model_dump_json()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._http.stream(method, path, content=content, headers=headers) as answer:
                status, told = answer.status_code, await self._within_bounds(answer)
        except httpx.HTTPError as error:
            raise _unreachable(self.address, error, self._seconds) from error
        response = httpx.Response(status, content=told)
        if response.is_success:
            return response
        raise _refusal(self.address, response)

    async def _within_bounds(self, answer: httpx.Response) -> bytes:
        content = bytearray()
        # As it comes: what is packed could be unpacked to any size.
        async for part in answer.aiter_raw():
            content += part
            if len(content) > self._most_bytes:
                raise NodeNotReadyError(
                    f"{self.address} answers with more than {self._most_bytes} bytes; is it a "
                    "tracker?"
                )
        return bytes(content)


class TrackerClient(_Connection):
    """The tracker, for whoever has a certificate of its cluster.

    Methods raise ``NodeUnreachableError`` when it can't be reached, ``InvalidArgumentError`` for
    what it refuses, :class:`UnauthenticatedError` when it doesn't know this machine any more.
    """

    def __init__(self, address: Address, identity: Identity) -> None:
        super().__init__(address, client_context(identity), ANSWER_SECONDS)

    async def show(self, identity: Identity) -> None:
        """Show another certificate from now on; nothing else may be asked meanwhile."""
        await self._http.aclose()
        self._http = self._opened(client_context(identity))

    async def heartbeat(self, request: msg.HeartbeatRequest) -> msg.HeartbeatReply:
        """Say what this machine has and does, and learn what it is to do."""
        return await self.ask(msg.HeartbeatReply, "POST", msg.PATH_HEARTBEAT, request)

    async def status(self) -> msg.StatusReply:
        """The cluster as the tracker sees it."""
        return await self.ask(msg.StatusReply, "GET", msg.PATH_STATUS)

    async def models(self) -> ModelsReply:
        """The models that the cluster serves."""
        return await self.ask(ModelsReply, "GET", PATH_MODELS)

    async def probe(self, padding_bytes: int) -> None:
        """Ask nothing, with so many bytes, so that the link can be timed; for a node."""
        await self.ask(Probe, "POST", PATH_PROBE, Probe(padding="0" * padding_bytes))

    async def route(self, request: asking.RouteRequest) -> asking.RouteReply:
        """A chain for the next generation; for a gateway."""
        return await self.ask(asking.RouteReply, "POST", asking.PATH_ROUTES, request)

    async def relay(self, request: asking.RelayRequest) -> asking.RelayReply:
        """Who may wait at the relay; for an admin."""
        return await self.ask(asking.RelayReply, "POST", asking.PATH_RELAY, request)

    async def send_logs(self, chunk: lm.LogChunk) -> None:
        """Send lines of this machine's log, which are wanted."""
        await self.send("POST", lm.PATH_LOGS, chunk)

    async def logs(self, node: NodeId, after: int) -> lm.LogsReply:
        """Want lines of a machine's log, and get those that have come; for an admin."""
        body = lm.LogsRequest(after=after)
        return await self.ask(lm.LogsReply, "POST", f"/nodes/{node}/logs", body)

    async def send_receipts(self, report: rm.ReceiptsReport) -> rm.ReceiptsReply:
        """What sessions took; for a node and a gateway."""
        return await self.ask(rm.ReceiptsReply, "POST", rm.PATH_RECEIPTS, report)

    async def tell(self, node: NodeId, verb: str) -> msg.StatusReply:
        """``drain``, ``undrain`` or ``remove`` a machine."""
        return await self.ask(msg.StatusReply, "POST", f"/nodes/{node}/{verb}")

    async def issue_token(self, request: msg.TokenRequest) -> msg.TokenReply:
        """A new join token."""
        return await self.ask(msg.TokenReply, "POST", msg.PATH_TOKENS, request)

    async def new_code(self, request: pm.CodeRequest) -> pm.CodeReply:
        """A new pairing code; for an admin."""
        return await self.ask(pm.CodeReply, "POST", pm.PATH_CODE, request)

    async def revoke_token(self, token_id: str) -> None:
        """Let nobody join with a token any more."""
        await self.send("DELETE", f"{msg.PATH_TOKENS}/{token_id}")

    async def renew(self, request: msg.RenewRequest) -> msg.JoinReply:
        """A new certificate for the key that this client's own is for."""
        return await self.ask(msg.JoinReply, "POST", msg.PATH_RENEW, request)


def _understood(kind: type[MessageT], content: bytes, answered: str) -> MessageT:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise NodeNotReadyError(
            f"the tracker at {answered} with something else: "
            f"{printable(where, MOST_MESSAGE)}: {first['msg']}; do both run the same version?"
        ) from None


def _unreachable(address: Address, error: httpx.HTTPError, seconds: float) -> NodeUnreachableError:
    if isinstance(error, httpx.TimeoutException):
        return NodeUnreachableError(f"the tracker at {address} didn't answer within {seconds:g} s")
    reason = str(error) or type(error).__name__
    return NodeUnreachableError(f"can't reach the tracker at {address}: {reason}")


def _refusal(address: Address, response: httpx.Response) -> MeshnetError:
    try:
        failure = msg.Failure.model_validate_json(response.content)
    except ValidationError:
        failure = msg.Failure(code="http", message=f"HTTP status {response.status_code}")
    # Who joins isn't sure yet who answers, and shows it on a terminal.
    told = printable(failure.message, MOST_MESSAGE)
    message = f"the tracker at {address} refused: {told}"
    if response.status_code in (401, 403):
        return UnauthenticatedError(message, field=failure.field or "")
    if response.status_code == 409:
        return StaleEpochError(message)
    if response.status_code >= 500 or response.status_code == 429:
        return NodeNotReadyError(message)
    return InvalidArgumentError(printable(failure.field or "request", MOST_MESSAGE), told)
