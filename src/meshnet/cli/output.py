"""What the commands print: errors, tables, progress. Colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from meshnet.model.progress import Progress as ProgressCallback

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
TOLD = logging.getLogger("meshnet.told")
"""What people are told on the terminal, for files that keep it; the terminal has it already."""
TOLD.addHandler(logging.NullHandler())


def print_error(message: str) -> None:
    """One line on standard error; the message's own brackets aren't markup."""
    err.print("[bold red]error:[/]", end=" ")
    err.print(message, markup=False, soft_wrap=True)
    TOLD.error("%s", message)


def print_note(message: str, *, kept: bool = False) -> None:
    """A remark on standard error; ``kept``: for the machine's log too, so never with a secret."""
    err.print(message, style="dim", markup=False, soft_wrap=True)
    if kept:
        TOLD.info("%s", message)


def print_line(message: str) -> None:
    """One line on standard output; its own brackets aren't markup, and it isn't folded."""
    out.print(message, markup=False, soft_wrap=True)


def print_step(message: str) -> None:
    """The same for what a machine does now, which its log keeps too."""
    print_line(message)
    TOLD.info("%s", message)


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
    # Names come from others: brackets in them are no markup.
    table = Table(title=escape(title), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    out.print(table)


def human_size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something goes on; nothing in a pipe."""
    if not err.is_terminal:
        yield
        return
    with err.status(escape(what)):
        yield


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
