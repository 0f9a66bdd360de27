"""What the commands print: errors, tables, progress. Colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from meshnet.domain.nodes import HopTimings
from meshnet.model.progress import Progress as ProgressCallback
from meshnet.session.service import GenerationSummary

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_error(message: str) -> None:
    """One line on standard error; the message's own brackets aren't markup."""
    err.print("[bold red]error:[/]", end=" ")
    err.print(message, markup=False, soft_wrap=True)


def print_note(message: str) -> None:
    """A remark on standard error."""
    err.print(message, style="dim", markup=False, soft_wrap=True)


def print_line(message: str) -> None:
    """One line on standard output; its own brackets aren't markup, and it isn't folded."""
    out.print(message, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output: ruled on a terminal, tab-separated in a pipe."""
    if not out.is_terminal:
        for row in (columns, *rows):
            sys.stdout.write("\t".join(str(cell) for cell in row) + "\n")
        sys.stdout.flush()
        return
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    out.print(table)


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """A callback that draws one bar a label on standard error; silent in a pipe.

    Work that is over before it can be seen (under a second) leaves nothing behind.
    """
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def advance(label: str, done: int, total: int, /) -> None:
        if label not in tasks:
            tasks[label] = bars.add_task(label, total=total)
        bars.update(tasks[label], completed=done, total=total)

    with bars:
        yield advance


def timing_rows(summary: GenerationSummary) -> list[dict[str, object]]:
    """One row a hop: milliseconds per decoded token in the engine, waiting, and on the link.

    The link's share of hop *i* is the time from handing a step on to the token's return, less all
    the time that later hops account for.
    """
    rows = []
    for index, hop in enumerate(summary.timings):
        steps = max(hop.decode_steps, 1)
        later = summary.timings[index + 1 :]
        accounted = _busy(later[0]) + later[0].decode_downstream_nanos if later else 0
        link = hop.decode_downstream_nanos - accounted if later else 0
        rows.append(
            {
                "node": hop.node_id,
                "layers": str(hop.layers),
                "prefill_tokens": hop.prefill_tokens,
                "prefill_engine_ms": round(hop.prefill_engine_nanos / 1e6, 2),
                "decode_steps": hop.decode_steps,
                "engine_ms_per_token": round(hop.decode_engine_nanos / steps / 1e6, 3),
                "queue_ms_per_token": round(hop.decode_queue_nanos / steps / 1e6, 3),
                "link_ms_per_token": round(link / steps / 1e6, 3),
            }
        )
    return rows


def print_timings(rows: Sequence[Mapping[str, object]]) -> None:
    """The per-hop table of :func:`timing_rows`."""
    columns = ("node", "layers", "prefill", "engine ms", "steps", "engine", "queue", "link")
    title = "per hop (decode: milliseconds a token; link: to the next node and back)"
    print_table(title, columns, [tuple(row.values()) for row in rows])


def _busy(hop: HopTimings) -> int:
    return hop.decode_engine_nanos + hop.decode_queue_nanos
