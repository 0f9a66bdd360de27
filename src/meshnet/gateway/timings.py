"""Where an answer's time went, for clients that ask for it with a header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import Scope

from meshnet.session.service import GenerationSummary
from meshnet.session.timings import hop_times

HEADER = "x-meshnet-timings"
"""Any value but ``0`` and ``false`` asks for the member ``meshnet_timings``."""


def timings_asked(scope: Scope) -> bool:
    """Whether a request has the header."""
    value = Headers(scope=scope).get(HEADER)
    return value is not None and value.strip().lower() not in ("0", "false")


def combined(summaries: Sequence[GenerationSummary]) -> GenerationSummary:
    """The choices of one answer as one: its first token, its end, the hops of all in order."""
    return replace(
        summaries[0],
        seconds_to_first_token=min(it.seconds_to_first_token for it in summaries),
        seconds=max(it.seconds for it in summaries),
        timings=tuple(hop for it in summaries for hop in it.timings),
        pauses=tuple(pause for it in summaries for pause in it.pauses),
    )


def timings_object(summary: GenerationSummary) -> dict[str, object]:
    """The member of a whole answer, or of a stream's last chunk; units are in the names.

    ``hops`` is empty for an answer that ended at a stop string. ``pauses_ms`` has a time for each
    chain that was lost meanwhile.
    """
    return {
        "meshnet_timings": {
            "first_token_ms": round(summary.seconds_to_first_token * 1e3, 2),
            "total_ms": round(summary.seconds * 1e3, 2),
            "pauses_ms": [round(pause * 1e3, 2) for pause in summary.pauses],
            "hops": [hop.fields() for hop in hop_times(summary.timings)],
        }
    }
