"""What a node counts while it works: plain numbers, cheap enough for every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from meshnet.domain.metrics import SECONDS, SIZES, Histogram
from meshnet.domain.status import StatusCode
from meshnet.engine.base import PrefillRequest, StepRequest, StepResult

NANO = 1e-9


class Phase(Enum):
    """What a step of the engine is for; one that holds a prefill chunk counts as prefill."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class StepFigures:
    """The steps of one phase."""

    rows: Histogram = field(default_factory=lambda: Histogram(SIZES))
    sessions: Histogram = field(default_factory=lambda: Histogram(SIZES))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """From handing a step to the engine's thread to its results being back."""
    queued_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """From a session's request to the start of the step that computes it."""


class NodeFigures:
    """One node's counts since it started. Belongs to the node's event loop."""

    __slots__ = (
        "accepted_tokens",
        "cache_hits",
        "cache_misses",
        "decode",
        "duplicates",
        "errors",
        "prefill",
        "prefix_hits",
        "prefix_misses",
        "prefix_tokens",
        "proposed_tokens",
    )

    def __init__(self) -> None:
        self.prefill = StepFigures()
        self.decode = StepFigures()
        self.cache_hits = 0
        self.cache_misses = 0
        self.duplicates = 0
        self.errors: dict[StatusCode, int] = {}
        self.prefix_hits = 0
        self.prefix_misses = 0
        self.prefix_tokens = 0
        self.proposed_tokens = 0
        self.accepted_tokens = 0

    def stepped(
        self,
        requests: Sequence[StepRequest],
        results: Sequence[StepResult],
        queued_nanos: Sequence[int],
        nanos: int,
    ) -> None:
        """Count a step of the engine: its requests in order with their results and their waits."""
        figures, rows = self.decode, 0
        for request in requests:
            rows += request.rows
            if isinstance(request, PrefillRequest):
                figures = self.prefill
        figures.sessions.observe(len(requests))
        figures.rows.observe(rows)
        figures.seconds.observe(nanos * NANO)
        for waited in queued_nanos:
            figures.queued_seconds.observe(waited * NANO)
        for result in results:
            if result.duplicate:
                self.duplicates += 1
            elif result.status.ok:
                self.cache_hits += 1
            elif result.status.code is StatusCode.CACHE_MISS:
                self.cache_misses += 1

    def began(self, cached_tokens: int) -> None:
        """Count a prompt of which so many tokens needn't be computed."""
        self.prefix_hits += cached_tokens > 0
        self.prefix_misses += cached_tokens == 0
        self.prefix_tokens += cached_tokens

    def guessed(self, *, right: bool) -> None:
        """Count a guess at a token, for which a row was computed."""
        self.proposed_tokens += 1
        self.accepted_tokens += right

    def failed(self, code: StatusCode) -> None:
        """Count a session that ended with an error, or was refused."""
        self.errors[code] = self.errors.get(code, 0) + 1
