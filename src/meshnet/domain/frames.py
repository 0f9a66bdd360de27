"""What travels on a seam: requests towards the tail, replies towards the gateway.

A ``handle`` is a small number that the opener of a stream gives to each session on it, so that a
decode step needn't carry the session's full name. These values have one wire form
(``meshnet.wire.convert``); the loopback transport hands them over as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.domain.ids import RouteSessionId
from meshnet.domain.lifecycle import CacheExpectation, CacheResult
from meshnet.domain.nodes import FlowControl, Hop, HopTimings
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StructuredStatus
from meshnet.domain.tensors import BoundaryBundle, EngineTensor


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names a session's state on every node: a newer epoch of the same session is another cache."""

    session_id: RouteSessionId
    route_epoch: int

    def __str__(self) -> str:
        return f"{self.session_id}@{self.route_epoch}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Fields of a newer peer's message, and of its envelope, that this version doesn't know.

    They are kept as they came and travel on with what the frame becomes on the next seam.
    """

    message: bytes = b""
    envelope: bytes = b""


NOTHING_UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What a node needs to know before a session's first step."""

    key: SessionKey
    fingerprint: Fingerprint
    hops: tuple[Hop, ...]
    """The receiver first, then the rest of the chain up to the tail."""
    deadline_unix_nanos: int
    """Wall-clock end of the session; 0 means none."""

    def __post_init__(self) -> None:
        if not self.hops:
            raise InvalidArgumentError("hops", "a route names at least the receiver itself")


@dataclass(frozen=True, slots=True)
class Generate:
    """Gateway to head: run this generation along the chain."""

    handle: int
    terms: SessionTerms
    spec: GenerationSpec
    token_credits: int
    """How many tokens the head may be ahead of the gateway; :class:`GrantTokens` adds to it."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Node to next node: steps of this session will follow."""

    handle: int
    terms: SessionTerms
    sampling: SamplingParams
    history: tuple[int, ...]
    """The prompt's last tokens, as many as the penalties look at; the tail continues them."""
    flow: FlowControl
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """Which slice of a prefill a chunk is."""

    index: int
    count: int
    token_count: int
    total_tokens: int

    @property
    def final(self) -> bool:
        """Whether the next token is chosen after this chunk."""
        return self.index == self.count - 1


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Node to next node: the boundary of one chunk of the prompt."""

    handle: int
    key: SessionKey
    chunk: ChunkInfo
    position: int
    """Of the chunk's first row."""
    step: int
    """The session's idempotency step: 0, 1, 2, ... over prefill chunks and decode steps alike."""
    expectation: CacheExpectation
    boundary: BoundaryBundle
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Node to next node: the boundary of one token."""

    handle: int
    position: int
    step: int
    tensor: EngineTensor
    """The residual, shape ``(1, n_embd)``."""
    expected_past_len: int | None = None
    """Positions the cache must hold; None means as many as come before this one."""
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True)
class DecodeFrame:
    """Several sessions' decode steps that were ready together."""

    steps: tuple[DecodeStep, ...]


@dataclass(frozen=True, slots=True)
class GrantTokens:
    """Gateway to head: this many more tokens may be computed ahead."""

    handle: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a session's work and drop its state; nothing more is said about it."""

    handle: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Drop a session's state; answered by :class:`SessionReleased`."""

    handle: int


SeamRequest = Generate | OpenSession | PrefillChunk | DecodeFrame | GrantTokens | Cancel | Release


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session is accepted, with the receiver's bounds."""

    handle: int
    flow: FlowControl


@dataclass(frozen=True, slots=True)
class StepAck:
    """A step was computed (and handed on), or was answered from memory if ``duplicate``."""

    handle: int
    step: int
    duplicate: bool
    cache: CacheResult


@dataclass(frozen=True, slots=True)
class TokenReply:
    """The tail's choice; also acknowledges the step it came from."""

    handle: int
    step: int
    token: GeneratedToken
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """The session ended with an error; its state is dropped along the chain."""

    handle: int
    status: StructuredStatus


@dataclass(frozen=True, slots=True)
class SessionReleased:
    """The state is dropped; each node put its timings in front of those of the nodes behind it."""

    handle: int
    timings: tuple[HopTimings, ...]


@dataclass(frozen=True, slots=True)
class GenerationDone:
    """Head to gateway: the generation ended by itself."""

    handle: int
    finish_reason: FinishReason
    timings: tuple[HopTimings, ...]


SeamReply = SessionOpened | StepAck | TokenReply | SessionFailed | SessionReleased | GenerationDone
