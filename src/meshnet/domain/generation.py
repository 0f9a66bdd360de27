"""One generation as the gateway asks for it and as the head reports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.sampling import SamplingParams, TokenLogprob


class FinishReason(Enum):
    """Why a generation ended by itself; an error or a cancel is no finish."""

    STOP = "stop"
    """An end-of-generation token, or a stop string."""
    LENGTH = "length"
    """The token limit, or the end of the context."""


class Speculation(Enum):
    """Whether rows are computed for guesses at coming tokens; the tokens stay the same."""

    AUTO = "auto"
    """Where it makes the generation faster."""
    OFF = "off"
    ON = "on"
    """Wherever there is a guess, also where it costs more than it gains."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What the head needs to run the decode loop by itself.

    ``max_new_tokens`` None means: until the model stops or the context is full.
    ``end_ids`` are the token ids that end it; the ending token is not reported.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    end_ids: frozenset[int] = frozenset()
    speculation: Speculation = Speculation.AUTO
    generated: int = 0
    """So many of the prompt's last tokens were generated before, by a chain that was lost. They are
    computed again as generated tokens are, and each must come out the same."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidArgumentError("prompt", "it has no tokens; at least one is needed")
        if any(token < 0 for token in self.prompt):
            raise InvalidArgumentError("prompt", "token ids can't be negative")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InvalidArgumentError("max_tokens", f"{self.max_new_tokens} must be at least 1")
        if not 0 <= self.generated < len(self.prompt):
            raise InvalidArgumentError(
                "generated",
                f"{self.generated} of {len(self.prompt)} prompt tokens can't be; one that wasn't "
                "generated comes first",
            )

    @property
    def asked(self) -> tuple[int, ...]:
        """The prompt without what was generated before."""
        return self.prompt[: len(self.prompt) - self.generated]

    @property
    def replayed(self) -> tuple[int, ...]:
        """What was generated before."""
        return self.prompt[len(self.prompt) - self.generated :]


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token as the tail chose it. ``position`` is the token's own place in the sequence."""

    position: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
