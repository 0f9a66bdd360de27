"""What the gateway counts, and how it is named: requests, generations, tokens and their pace."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from meshnet.domain.errors import MeshnetError
from meshnet.domain.metrics import LONG_SECONDS, SECONDS, Histogram, Metric, MetricKind, Sample
from meshnet.domain.receipts import ReceiptState
from meshnet.domain.status import StatusCode
from meshnet.session.service import GenerationSummary, TextDelta
from meshnet.transport.receipts import ReceiptBook

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM


def _metric(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(f"meshnet_gateway_{name}", kind, labels, meaning)


REQUESTS = _metric(
    "requests_total",
    COUNTER,
    "HTTP requests by route and status; 429 counts those refused by a key's limits or because too "
    "many wait, `none` those whose client left before an answer began.",
    "route",
    "status",
)
IN_FLIGHT = _metric("requests_in_flight", GAUGE, "HTTP requests being answered.")
REQUEST_SECONDS = _metric(
    "request_seconds", HISTOGRAM, "How long a request took, to the answer's last byte.", "route"
)
GENERATIONS = _metric(
    "generations_total",
    COUNTER,
    "Generations by how they ended: `stop`, `length`, `left` (nobody wanted the rest), or an "
    "error's code.",
    "model",
    "end",
)
WAITING = _metric("waiting", GAUGE, "Generations that wait for their turn.", "model")
WAIT_SECONDS = _metric(
    "wait_seconds", HISTOGRAM, "How long a generation waited for its turn.", "model"
)
FIRST_TOKEN = _metric(
    "time_to_first_token_seconds",
    HISTOGRAM,
    "From asking for a generation to its first token, its wait included.",
    "model",
)
TOKEN_GAP = _metric(
    "token_gap_seconds", HISTOGRAM, "Between one token and the next of a generation.", "model"
)
PROMPT_TOKENS = _metric(
    "prompt_tokens_total",
    COUNTER,
    "Prompt tokens of generations that ended by themselves.",
    "model",
)
CACHED_TOKENS = _metric(
    "cached_prompt_tokens_total",
    COUNTER,
    "Those of them that an earlier generation's caches stood for.",
    "model",
)
COMPLETION_TOKENS = _metric("completion_tokens_total", COUNTER, "Tokens generated.", "model")
RECOVERIES = _metric(
    "recoveries_total",
    COUNTER,
    "Times that a generation lost a node and went on with another chain, or the same one again.",
    "model",
)
RECOVERY_PAUSE = _metric(
    "recovery_pause_seconds",
    HISTOGRAM,
    "How long such a generation had no token, from the last one before the loss.",
    "model",
)
RECEIPTS = _metric(
    "receipts_total",
    COUNTER,
    "Receipts of seams to heads by state: signed by both sides, disputed, the word of one side, or "
    "dropped since nobody fetched them.",
    "state",
)

GATEWAY_METRICS = (
    REQUESTS,
    IN_FLIGHT,
    REQUEST_SECONDS,
    GENERATIONS,
    WAITING,
    WAIT_SECONDS,
    FIRST_TOKEN,
    TOKEN_GAP,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    RECOVERIES,
    RECOVERY_PAUSE,
    RECEIPTS,
)
"""Every metric of the gateway itself, in the order in which they are documented."""


@dataclass(slots=True)
class _ModelFigures:
    ends: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    waits: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    first_token: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    gaps: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    pauses: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))


async def no_samples() -> list[Sample]:
    """For a gateway whose nodes' figures are read at the nodes."""
    return []


class GatewayFigures:
    """One gateway's counts since it started. Belongs to the gateway's event loop."""

    def __init__(
        self,
        nodes: Callable[[], Awaitable[list[Sample]]] = no_samples,
        receipts: ReceiptBook | None = None,
    ) -> None:
        """``nodes`` reads the samples of the nodes that the gateway's process looks after;
        ``receipts``: the gateway's own, None where there are none."""
        self._receipts = receipts
        self._nodes = nodes
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._models: dict[str, _ModelFigures] = {}
        self.in_flight = 0

    def answered(self, route: str, status: int | None, seconds: float) -> None:
        """Count a request that is over; no status means that no answer was begun."""
        self._requests[route, "none" if status is None else str(status)] += 1
        if route not in self._seconds:
            self._seconds[route] = Histogram(LONG_SECONDS)
        self._seconds[route].observe(seconds)

    def recovered(self, model: str, pause_seconds: float) -> None:
        """Count a generation of ``model`` that goes on after a loss."""
        self._models.setdefault(model, _ModelFigures()).pauses.observe(pause_seconds)

    @contextmanager
    def waits(self, model: str) -> Iterator[None]:
        """Count a generation of ``model`` that waits for its turn, and for how long."""
        figures = self._models.setdefault(model, _ModelFigures())
        came = time.perf_counter()
        figures.waiting += 1
        try:
            yield
        finally:
            figures.waiting -= 1
            figures.waits.observe(time.perf_counter() - came)

    async def watched(
        self, model: str, events: AsyncGenerator[TextDelta | GenerationSummary, None]
    ) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        """The same events; counts a generation of ``model`` on the way."""
        figures = self._models.setdefault(model, _ModelFigures())
        last = time.perf_counter()
        pace = figures.first_token
        end = "left"
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, GenerationSummary):
                        end = event.finish_reason.value
                        figures.prompt_tokens += event.prompt_tokens
                        figures.cached_tokens += event.cached_tokens
                    elif event.tokens:
                        now = time.perf_counter()
                        pace.observe(now - last)
                        last, pace = now, figures.gaps
                        figures.completion_tokens += len(event.tokens)
                    yield event
        except MeshnetError as error:
            end = error.code.value
            raise
        except Exception:
            end = StatusCode.INTERNAL.value
            raise
        finally:
            figures.ends[end] += 1

    async def read(self) -> list[Sample]:
        """All samples of now."""
        return [*self._own(), *await self._nodes()]

    def _own(self) -> Iterator[Sample]:
        yield Sample(IN_FLIGHT, (), self.in_flight)
        book = self._receipts
        for state in ReceiptState:
            yield Sample(RECEIPTS, (state.value,), 0 if book is None else book.counts[state])
        yield Sample(RECEIPTS, ("dropped",), 0 if book is None else book.dropped)
        for labels, count in self._requests.items():
            yield Sample(REQUESTS, labels, count)
        for route, seconds in self._seconds.items():
            yield Sample(REQUEST_SECONDS, (route,), seconds.read())
        for model, figures in self._models.items():
            for end, count in figures.ends.items():
                yield Sample(GENERATIONS, (model, end), count)
            yield Sample(WAITING, (model,), figures.waiting)
            yield Sample(WAIT_SECONDS, (model,), figures.waits.read())
            yield Sample(FIRST_TOKEN, (model,), figures.first_token.read())
            yield Sample(TOKEN_GAP, (model,), figures.gaps.read())
            yield Sample(PROMPT_TOKENS, (model,), figures.prompt_tokens)
            yield Sample(CACHED_TOKENS, (model,), figures.cached_tokens)
            yield Sample(COMPLETION_TOKENS, (model,), figures.completion_tokens)
            pauses = figures.pauses.read()
            yield Sample(RECOVERIES, (model,), pauses.count)
            yield Sample(RECOVERY_PAUSE, (model,), pauses)
