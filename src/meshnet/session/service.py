"""What the gateway and the command line ask of a served model: text requests, text events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.generation import FinishReason, GeneratedToken, Speculation
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.nodes import Capability, HealthReport, Hop, HopTimings
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.tokenizer import Tokenizer

DEFAULT_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A generation's session, which the chain has let in."""

    session_id: RouteSessionId
    """As the nodes' logs and traces name it."""
    hops: tuple[Hop, ...]
    """The chain, head first."""
    cached_tokens: int
    """Of the prompt's tokens, those that an earlier generation's caches stand for."""
    signed: bool = False
    """Whether both sides of each seam sign what the session takes."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A generation whose chain was lost, and which goes on with another one."""

    key: SessionKey
    """As the nodes' logs and traces name it from now on."""
    hops: tuple[Hop, ...]
    """The chain of now, head first."""
    replayed_tokens: int
    """Generated tokens that were computed once more."""
    lost: str
    """Why the chain before it was of no more use."""
    pause_seconds: float
    """From the last that was heard of that chain to the first token of this one."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One generation in the words of a user: a tokenised prompt, parameters, stop strings."""

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    """None means: until the model stops or the context is full."""
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    """Go on past the model's own end-of-generation tokens."""
    speculation: Speculation | None = None
    """Whether to guess ahead; None leaves it to the model's service."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """The generation as a whole ends with ``DeadlineExceededError`` after this."""
    shown_tokens: frozenset[int] = frozenset()
    """Control tokens whose names are a part of the text; the others have none."""
    on_open: Callable[[Opened], None] | None = field(default=None, compare=False, repr=False)
    """Told when the chain has let the generation in, before its first token; once more by each
    chain that takes it up."""
    on_recovery: Callable[[Recovered], None] | None = field(default=None, compare=False, repr=False)
    """Told when the generation goes on with another chain, at its first token."""

    def __post_init__(self) -> None:
        if any(not stop for stop in self.stop):
            raise InvalidArgumentError("stop", "a stop string can't be empty")
        if not 0 < self.timeout_seconds < float("inf"):
            raise InvalidArgumentError("timeout", f"{self.timeout_seconds} must be positive")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is safe to show, and the tokens that came since the last delta.

    The text may be empty while a character or a possible stop string is incomplete.
    """

    text: str
    tokens: tuple[GeneratedToken, ...]


@dataclass(frozen=True, slots=True)
class GenerationSummary:
    """The last event of a generation that ended by itself."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    """Tokens generated, the ending token not counted."""
    seconds_to_first_token: float
    seconds: float
    stop_string: str | None = None
    cached_tokens: int = 0
    """Of the prompt's tokens, those that an earlier generation's caches stood for."""
    timings: tuple[HopTimings, ...] = ()
    """Of the chain that it ended on."""
    pauses: tuple[float, ...] = ()
    """Seconds without a token, each time that a chain was lost and another one took it up."""


class ModelService(Protocol):
    """A model that can be talked to. One object serves many generations at once."""

    @property
    def name(self) -> str:
        """The name users call it by."""

    @property
    def created_unix(self) -> int:
        """When the service came up, in seconds."""

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""

    def prompt_from_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> tuple[int, ...]:
        """Render the model's own chat template and tokenise it; raises ``TemplateError``.

        An assistant's turn at the end is a beginning that the answer goes on from.
        """

    def prompt_from_text(self, text: str) -> tuple[int, ...]:
        """Tokenise plain text, with the beginning-of-sequence token if the model wants one."""

    def require_grammar(self, grammar: str) -> None:
        """Raise :class:`InvalidArgumentError` naming ``grammar`` if it can't be followed.

        It takes a moment. Nothing is raised where only the nodes can tell: a generation does then.
        """

    def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        """Stream one generation; the summary comes last.

        Closing the iterator early cancels the work on every node. Raises ``ContextLengthError``
        before the first event if the prompt doesn't fit, and any other :class:`MeshnetError` when
        it happens.
        """

    async def chain(self) -> tuple[tuple[Capability, HealthReport], ...]:
        """Every node of the chain, head first; raises ``NodeError`` if one can't be asked."""
