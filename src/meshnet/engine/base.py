"""``ShardEngine``: the one seam between the protocol and whatever computes.

Nothing of an engine's internals crosses it: requests and results are plain values, tensors are
buffers. An engine is driven by one thread at a time; a node runs all calls on its engine thread.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshnet.domain.errors import EngineError, InvalidArgumentError, LayerRangeError
from meshnet.domain.ids import SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheResult, LifecycleState
from meshnet.domain.recipe import Recipe
from meshnet.domain.sampling import SamplingParams, TokenLogprob
from meshnet.domain.status import OK, StructuredStatus
from meshnet.domain.tensors import BoundaryBundle, DType


@dataclass(frozen=True, slots=True)
class MtpHook:
    """Multi-token prediction: a reserved place. ``enabled`` raises, since no engine has it yet."""

    enabled: bool = False

    def __post_init__(self) -> None:
        if self.enabled:
            raise InvalidArgumentError("mtp", "multi-token prediction isn't available")


@dataclass(frozen=True, slots=True)
class ArchitectureAuxStateHook:
    """Auxiliary state of an architecture that stays on its shard; it has no wire form."""

    kind: str

    def __post_init__(self) -> None:
        if not self.kind:
            raise InvalidArgumentError("kind", "auxiliary state needs a kind")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much of the machine a shard may use."""

    context_length: int = 4096
    """Positions one session may hold."""
    max_sessions: int = 8
    """Sessions with a cache at once."""
    threads: int = 1
    gpu_layers: int = 0
    """So many of the shard's last layers are computed on a GPU; more than it has means all."""
    memory_bytes: int = 0
    """Upper bound for the shard's weights; 0 means no bound."""
    mmap: bool = True
    """Whether weights on the processor are mapped from the file rather than copied."""
    mlock: bool = False
    """Whether they are kept from being swapped out."""

    def __post_init__(self) -> None:
        for name, low in (("context_length", 1), ("max_sessions", 1), ("threads", 1)):
            if getattr(self, name) < low:
                raise InvalidArgumentError(name, f"{getattr(self, name)} must be at least {low}")
        for name in ("gpu_layers", "memory_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} can't be negative")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which shard to load, to be computed how, within which limits."""

    model_path: Path | None
    """The file; None for an engine that reads none."""
    shard_start: int
    shard_end: int
    total_layers: int
    recipe: Recipe
    limits: EngineLimits = field(default_factory=EngineLimits)
    mtp: MtpHook = field(default_factory=MtpHook)

    def __post_init__(self) -> None:
        if not 0 <= self.shard_start < self.shard_end <= self.total_layers:
            raise LayerRangeError(
                f"shard [{self.shard_start}, {self.shard_end}) of {self.total_layers} layers "
                f"must satisfy 0 <= start < end <= total"
            )

    @property
    def layers(self) -> LayerRange:
        """The shard as a range."""
        return LayerRange(self.shard_start, self.shard_end)


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What a loaded engine holds and can do; the authority on its range."""

    shard_start: int
    shard_end: int
    total_layers: int
    n_embd: int
    n_vocab: int
    """Size of the vocabulary; 0 on an engine that doesn't sample."""
    limits: EngineLimits
    dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    exact_sessions: int = 1
    """Up to this many sessions' single rows in one step equal each alone, bit for bit."""
    exact_step_tokens: int = 1
    """Up to this many consecutive rows of one session are computed at once and equal single steps
    bit for bit; more of them take several passes."""
    exact_pieces: tuple[int, int] | None = None
    """Fewest and most rows: the bits of a prompt don't depend on how it is cut into steps if each
    has so many. None: they depend on every border."""
    supports_rollback: bool = True
    """Whether a cache can be cut back to an earlier position. A ``TRUNCATE`` that drops something,
    or a ``FORK`` of less than its source holds, is a cache miss if it can't."""
    supports_mtp: bool = False
    supports_grammar: bool = False
    """Whether tokens can be kept to a grammar; False on an engine that doesn't sample."""

    @property
    def is_head(self) -> bool:
        """Whether the shard takes token ids."""
        return self.shard_start == 0

    @property
    def is_tail(self) -> bool:
        """Whether the shard gives tokens."""
        return self.shard_end == self.total_layers


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What was loaded, and what it takes."""

    capabilities: EngineCapabilities
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """How a tail chooses: parameters, and the tokens before the one that it chooses first."""

    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    history: tuple[int, ...] = ()
    """The tokens up to and with the last one before the first choice, as many as the penalties look
    at, and all that were generated where there is a grammar."""
    proposed: tuple[int, ...] = ()
    """The tokens of a decode step's rows after its first. Choices after a later row have them in
    their history; may be left out where nothing looks at the history."""
    generated: int = 0
    """So many of the history's last tokens are the beginning of what the grammar describes."""

    def __post_init__(self) -> None:
        if not 0 <= self.generated <= len(self.history):
            raise InvalidArgumentError(
                "generated", f"{self.generated} of {len(self.history)} history tokens can't be"
            )

    def before(self, choice: int) -> tuple[int, ...]:
        """The history of the step's choice of that number, 0 for the first."""
        return self.history + self.proposed[:choice]

    def generated_before(self, choice: int) -> tuple[int, ...]:
        """Of that history, the tokens that the grammar has seen."""
        return self.before(choice)[len(self.history) - self.generated :]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Rows ``[position, position + rows)`` of one session: token ids on a head, else ``input``."""

    key: SessionKey
    position: int
    expectation: CacheExpectation
    idempotency_step: int
    token_ids: tuple[int, ...] = ()
    input: BoundaryBundle | None = None
    choice: TokenChoice = field(default_factory=TokenChoice)

    def __post_init__(self) -> None:
        if bool(self.token_ids) == (self.input is not None):
            raise InvalidArgumentError("input", "give exactly one of token ids and input")
        if self.rows < 1:
            raise InvalidArgumentError("input", "it has no rows; a step computes at least one")
        if self.position < 0:
            raise InvalidArgumentError("position", f"{self.position} is negative")
        if self.expectation.expected_past_len != self.position:
            raise InvalidArgumentError(
                "expected_past_len",
                f"{self.expectation.expected_past_len} differs from the position {self.position}",
            )
        if self.expectation.source == self.key:
            raise InvalidArgumentError("source", f"session {self.key} can't be forked from itself")
        proposed = len(self.choice.proposed)
        if proposed != self.choices - 1 and (proposed or self.choice.params.needs_history):
            raise InvalidArgumentError(
                "proposed", f"{proposed} tokens where {self.choices} choices follow one another"
            )

    @property
    def rows(self) -> int:
        """Positions this step computes."""
        return self.input.rows if self.input is not None else len(self.token_ids)

    @property
    def choices(self) -> int:
        """Tokens that a tail chooses: one, after the last row."""
        return 1


@dataclass(frozen=True, slots=True)
class PrefillRequest(StepRequest):
    """A chunk of a prompt, its own step of the engine."""


@dataclass(frozen=True, slots=True)
class DecodeRequest(StepRequest):
    """A generated token, or several to be verified at once: a tail chooses after every row.

    It may share a step of the engine with other sessions' tokens. Its results are those of as many
    steps of one row, bit for bit.
    """

    @property
    def choices(self) -> int:
        """Tokens that a tail chooses: one after each row."""
        return self.rows


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """A tail's choice; never raw logits."""

    token_id: int
    text: str | None = None
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()

    def __post_init__(self) -> None:
        if self.token_id < 0:
            raise InvalidArgumentError("token_id", f"{self.token_id} is negative")


Output = BoundaryBundle | TokenOutput | tuple[TokenOutput, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step. An OK result has an output.

    A refused step left the cache as it was, but for what a ``TRUNCATE`` drops. A step that failed
    in the engine itself (``EngineError``) may have cost its session the cache: its next step
    misses.
    """

    status: StructuredStatus
    output: Output | None = None
    """A boundary with a row a position; on a tail the token, or as many as the request has
    ``choices`` if they are several."""
    cache_result: CacheResult | None = None
    duplicate: bool = False
    """True when the step had run before and this is the first run's result."""
    engine_nanos: int = 0

    def __post_init__(self) -> None:
        if self.status.ok and not self.output:
            raise InvalidArgumentError("output", "an OK result has an output")

    def boundary(self) -> BoundaryBundle:
        """The output of a head or middle shard."""
        if not isinstance(self.output, BoundaryBundle):
            raise EngineError("the engine gave no boundary where one was due")
        return self.output

    def token(self) -> TokenOutput:
        """The output of a tail that chose once."""
        if not isinstance(self.output, TokenOutput):
            raise EngineError("the engine gave no token where one was due")
        return self.output

    def tokens(self) -> tuple[TokenOutput, ...]:
        """The output of a tail: a token for each of the request's ``choices``, in order."""
        return self.output if isinstance(self.output, tuple) else (self.token(),)


@dataclass(frozen=True, slots=True)
class HealthResult:
    """An engine's state and its reason."""

    state: LifecycleState
    status: StructuredStatus = OK


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """Counts since load."""

    open_sessions: int = 0
    cancelled_sessions: int = 0
    steps: int = 0
    rows: int = 0
    engine_nanos: int = 0
    cache_misses: int = 0
    duplicates: int = 0
    positions: int = 0
    """Positions that the caches hold now, all sessions together."""


class ShardEngine(abc.ABC):
    """Computes one shard for many sessions, each with its own cache, keyed by session and epoch."""

    @abc.abstractmethod
    def load(self, request: LoadRequest) -> LoadResult:
        """Load the shard; raises a :class:`MeshnetError` that says what is wrong with it."""

    @abc.abstractmethod
    def capabilities(self) -> EngineCapabilities:
        """What is loaded; raises ``NodeNotReadyError`` before :meth:`load`."""

    @abc.abstractmethod
    def prefill(self, request: PrefillRequest) -> StepResult:
        """Compute a chunk. Never raises for a bad request: the result's status says it."""

    @abc.abstractmethod
    def decode(self, request: DecodeRequest) -> StepResult:
        """Compute generated tokens' rows. Never raises for a bad request, like :meth:`prefill`."""

    @abc.abstractmethod
    def cancel(self, key: SessionKey) -> None:
        """Refuse the session's further steps and free its cache; idempotent."""

    @abc.abstractmethod
    def release(self, key: SessionKey) -> None:
        """Forget the session and free its cache; idempotent."""

    @abc.abstractmethod
    def health(self) -> HealthResult:
        """State; LOADING before :meth:`load`."""

    @abc.abstractmethod
    def metrics(self) -> MetricsResult:
        """Counts since load."""

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        """Run steps of different sessions; result *i* belongs to request *i*.

        This default runs them one by one; an engine that can batch overrides it, with equal
        results.
        """
        return [
            self.prefill(request) if isinstance(request, PrefillRequest) else self.decode(request)
            for request in requests
            if isinstance(request, PrefillRequest | DecodeRequest)
        ]
