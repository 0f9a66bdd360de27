"""How a token is to be chosen, and what was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError

MAX_TOP_LOGPROBS = 20
_LARGEST = 2**31 - 1
"""Of what counts tokens: more than any vocabulary or context has."""
MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a grammar's text; one of that size has some thousand rules."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of the choice of one token; the defaults sample from the plain distribution.

    The filters apply in llama.cpp's order: logit bias, penalties, top-k, top-p, min-p, temperature.
    Raises :class:`InvalidArgumentError` at construction, naming the parameter.
    """

    temperature: float = 1.0
    """0 means greedy: the largest logit, the lowest id among equals."""
    top_k: int = 0
    """Keep the k largest logits; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one; 0 drops none."""
    repeat_penalty: float = 1.0
    """Divide positive and multiply negative logits of recent tokens by this; 1 changes none."""
    presence_penalty: float = 0.0
    """Subtract this from the logit of every recent token."""
    frequency_penalty: float = 0.0
    """Subtract this from the logit of a recent token, times the number of its occurrences."""
    penalty_last_n: int = 64
    """How many of the last tokens, prompt included, count as recent; -1 means all."""
    seed: int = 0
    """Keys the random draw, together with the position; 64 bits."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids; ``-inf`` bans a token."""
    top_logprobs: int = 0
    """How many of the most likely tokens to report with their log-probabilities."""
    logprobs: bool = False
    """Whether to report the chosen token's log-probability."""
    grammar: str = ""
    """GBNF, llama.cpp's notation, that the generated text must follow from its first character,
    the start symbol is ``root``; empty means none. Applies before all filters. The names of control
    tokens aren't text: a grammar allows such a token where it has its number, ``<[7]>``."""

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, 0.0, math.inf)
        _require("top_k", self.top_k, 0, _LARGEST)
        _require("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _require("min_p", self.min_p, 0.0, 1.0)
        _require("repeat_penalty", self.repeat_penalty, 0.0, math.inf, low_open=True)
        _require("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require("penalty_last_n", self.penalty_last_n, -1, _LARGEST)
        _require("seed", self.seed, 0, 2**64 - 1)
        _require("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise InvalidArgumentError("logit_bias", f"token {token} can't have bias {bias}")
        _require_grammar(self.grammar)

    @property
    def greedy(self) -> bool:
        """Whether no random draw is made."""
        return self.temperature == 0.0

    @property
    def needs_history(self) -> bool:
        """Whether earlier tokens change the choice."""
        return bool(self.grammar) or self.penalises

    @property
    def penalises(self) -> bool:
        """Whether the logits of recent tokens change."""
        return self.penalty_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token id and its natural-log probability before any filter but the logit bias."""

    token_id: int
    logprob: float


def _require_grammar(grammar: str) -> None:
    try:
        size = len(grammar.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            "grammar", f"character {error.start} is half of a surrogate pair; send valid Unicode"
        ) from None
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidArgumentError(
            "grammar", f"it has {size} bytes, more than the {MAX_GRAMMAR_BYTES} allowed"
        )


def _require(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    inside = (value > low if low_open else value >= low) and value <= high
    if not inside or math.isinf(value):
        left = "more than" if low_open else "at least"
        limit = "" if high == math.inf else f" and at most {high:g}"
        raise InvalidArgumentError(name, f"{value} must be {left} {low:g}{limit}")
