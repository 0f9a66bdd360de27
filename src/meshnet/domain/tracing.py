"""Traces: which request a piece of work belongs to, and what is told about it.

The work names a :class:`Tracer`; who started the process decides whether that is one that exports
spans or :data:`NO_TRACER`, which does nothing. The form of ``traceparent`` is W3C's Trace Context,
level 1 (https://www.w3.org/TR/trace-context-1/).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol

from meshnet.domain.errors import InvalidArgumentError, MeshnetError

SAMPLED: Final = 0x01
"""The flag that says that somebody records this trace."""

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace: whatever is done next belongs below this span."""

    trace_id: str
    """32 hexadecimal digits, not all zero."""
    span_id: str
    """16 hexadecimal digits, not all zero."""
    flags: int = SAMPLED
    """One byte; see :data:`SAMPLED`."""

    def __post_init__(self) -> None:
        for name, length in (("trace_id", 32), ("span_id", 16)):
            value = getattr(self, name)
            if not re.fullmatch(rf"[0-9a-f]{{{length}}}", value) or not value.strip("0"):
                raise InvalidArgumentError(
                    name, f"{value!r} isn't {length} hexadecimal digits, not all of them 0"
                )
        if not 0 <= self.flags <= 0xFF:
            raise InvalidArgumentError("flags", f"{self.flags} isn't a byte")

    @property
    def sampled(self) -> bool:
        """Whether spans of this trace are to be recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The header's value, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def new_trace() -> TraceContext:
    """The start of a trace of its own."""
    # Neither may be all zeros, which the last byte sees to.
    return TraceContext(secrets.token_hex(15) + "01", secrets.token_hex(7) + "01")


def parse_traceparent(header: str) -> TraceContext | None:
    """Read the header; None for what isn't of its form, after which a new trace is to be begun.

    Of a version newer than 00, what follows the flags is passed over, and of the flags all but
    :data:`SAMPLED`.
    """
    match = _HEADER.fullmatch(header.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    kept = int(flags, 16) if version == "00" else int(flags, 16) & SAMPLED
    return TraceContext(trace_id, span_id, kept)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    unix_nanos: int
    attributes: Attributes = field(default_factory=dict)


class Span(Protocol):
    """A piece of work that is under way."""

    @property
    def context(self) -> TraceContext:
        """What work below this span refers to."""

    @property
    def recording(self) -> bool:
        """Whether anybody will see what is told; if not, nothing needs to be gathered."""

    def event(self, event: SpanEvent) -> None:
        """Something happened."""

    def end(
        self,
        attributes: Attributes | None = None,
        error: MeshnetError | None = None,
        unix_nanos: int | None = None,
    ) -> None:
        """The work is over, now or at a given time; for good, or with an error."""


class Tracer(Protocol):
    """Begins spans."""

    @property
    def detail(self) -> bool:
        """Whether to tell of every token, rather than of a generation as a whole."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Attributes | None = None,
        unix_nanos: int | None = None,
    ) -> Span:
        """Begin a span, now or at a given time; without a parent it begins a trace."""


class _NoSpan:
    """Passes its parent's place on, so that a trace goes past whoever doesn't record it."""

    __slots__ = ("context",)

    recording = False

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def event(self, event: SpanEvent) -> None:
        pass

    def end(
        self,
        attributes: Attributes | None = None,
        error: MeshnetError | None = None,
        unix_nanos: int | None = None,
    ) -> None:
        pass


class _NoTracer:
    detail = False

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Attributes | None = None,
        unix_nanos: int | None = None,
    ) -> Span:
        return _NoSpan(parent or new_trace())


NO_TRACER: Final[Tracer] = _NoTracer()

CURRENT_TRACE: ContextVar[TraceContext | None] = ContextVar("meshnet_trace", default=None)
"""The place of the request that the current task serves; None outside of any."""
