"""What travels on a seam: requests towards the tail, replies towards the gateway.

A ``handle`` is a small number that the opener of a stream gives to each session on it, so that a
decode step needn't carry the session's full name. These values have one wire form
(``meshnet.wire.convert``); the loopback transport hands them over as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheResult
from meshnet.domain.nodes import FlowControl, Hop, HopTimings
from meshnet.domain.receipts import SeamEnd, Statement
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StructuredStatus
from meshnet.domain.tensors import BoundaryBundle, EngineTensor
from meshnet.domain.tracing import TraceContext


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
    """Wall-clock end of the session; 0 leaves it to each node, which ends it in an hour at most."""
    trace: TraceContext | None = None
    """Where the session belongs in a trace; every node's spans go below it."""

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
    opener: SeamEnd | None = None
    """Who signs a receipt; None wants none."""


MIN_RETURN_KEY_BYTES, MAX_RETURN_KEY_BYTES = 16, 64


@dataclass(frozen=True, slots=True)
class ReturnPath:
    """Where a tail may bring a session's tokens straight to the head, past the nodes between."""

    address: Address
    key: bytes = field(repr=False)
    """Proves that the bringer belongs to the session; it can't be guessed."""
    node_id: NodeId | None = None
    """Who must be at the address, where connections prove it; None if the opener didn't say."""

    def __post_init__(self) -> None:
        require_return_key(self.key)
        if self.node_id == "":
            raise InvalidArgumentError("return_path.node_id", "it is empty; None stands for none")


def require_return_key(key: bytes) -> None:
    """Raise :class:`InvalidArgumentError` for a key of a length that none has."""
    if not MIN_RETURN_KEY_BYTES <= len(key) <= MAX_RETURN_KEY_BYTES:
        raise InvalidArgumentError(
            "return_path.key",
            f"{len(key)} bytes aren't {MIN_RETURN_KEY_BYTES} to {MAX_RETURN_KEY_BYTES}",
        )


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
    return_path: ReturnPath | None = None
    """The tail's own way to the head; None means that tokens go back along the seams."""
    positions: int = 0
    """Positions that the session may come to hold, to be reserved; 0 means a whole context."""
    begin: CacheExpectation | None = None
    """The fork that the first chunk is to begin with if every node keeps its source; None for an
    empty cache."""
    generated: int = 0
    """So many of the history's last tokens were generated: a grammar has begun with them."""
    opener: SeamEnd | None = None
    """Who signs a receipt; None wants none."""

    def __post_init__(self) -> None:
        if not 0 <= self.generated <= len(self.history):
            raise InvalidArgumentError(
                "generated", f"{self.generated} of {len(self.history)} history tokens can't be"
            )


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
    """Node to next node: the boundary of one token, or of several that follow one another."""

    handle: int
    position: int
    step: int
    tensor: EngineTensor
    """The residual, shape ``(rows, n_embd)``."""
    expected_past_len: int | None = None
    """Positions the cache must hold; None means as many as come before this one."""
    proposed: tuple[int, ...] = ()
    """The tokens of the rows after the first, which are guesses; the first may be one too."""
    truncate: bool = False
    """Whether the cache may hold more, which is dropped; steps that were sent before this one and
    aren't begun are void then."""
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
    """End a session; answered by :class:`SessionReleased`."""

    handle: int
    keep: bool = False
    """The cache may stay, so that a later session of this stream can begin with a fork of it."""


@dataclass(frozen=True, slots=True)
class AttachReturn:
    """Tail to head, on a stream of the tail's own: this session's tokens will come here.

    Answered by :class:`SessionOpened`, or :class:`SessionFailed` if the head doesn't await them.
    """

    handle: int
    key: SessionKey
    secret: bytes = field(repr=False)
    """The return path's key."""

    def __post_init__(self) -> None:
        require_return_key(self.secret)


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session is accepted, with the receiver's bounds."""

    handle: int
    flow: FlowControl
    step_tokens: int = 0
    """Rows that a decode step may have here and at every node behind. 0: one, and no step may be
    sent before the last one's token came, nor be taken back."""
    pieces: tuple[int, int] | None = None
    """``EngineCapabilities.exact_pieces`` here and at every node behind."""
    cached_tokens: int = 0
    """Positions that the fork asked for will give here and at every node behind."""
    replayed_tokens: int = 0
    """A head's answer: so many of the prompt's last tokens will be computed as generated ones."""


@dataclass(frozen=True, slots=True)
class StepAck:
    """A step was computed (and handed on), or was answered from memory if ``duplicate``."""

    handle: int
    step: int
    duplicate: bool
    cache: CacheResult


@dataclass(frozen=True, slots=True)
class TokenReply:
    """The tail's choice after one row; also acknowledges the step it came from.

    A step of several rows gets as many, in the order of their positions.
    """

    handle: int
    step: int
    token: GeneratedToken
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True)
class ReturnedTokens:
    """Tail to head: tokens that took the straight way; their handles are those of the tail."""

    replies: tuple[TokenReply, ...]


@dataclass(frozen=True, slots=True)
class SignedWork:
    """What the receiver says that an ended session took, and then what the opener says."""

    handle: int
    statement: Statement


SeamRequest = (
    Generate
    | OpenSession
    | PrefillChunk
    | DecodeFrame
    | GrantTokens
    | Cancel
    | Release
    | AttachReturn
    | ReturnedTokens
    | SignedWork
)


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


SeamReply = (
    SessionOpened
    | StepAck
    | TokenReply
    | SessionFailed
    | SessionReleased
    | GenerationDone
    | SignedWork
)
