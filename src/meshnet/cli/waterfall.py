"""Where one answer's time went, node by node: bars on a terminal, numbers in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from meshnet.cli.output import out, print_note
from meshnet.session.service import GenerationSummary
from meshnet.session.timings import HopTimes, Share, hop_times

BAR_CELLS = 36
PARTS = (
    ("queue", "▒", "yellow"),
    ("engine", "█", "green"),
    ("codec", "▓", "blue"),
    ("wait", "░", "bright_black"),
)
"""A share's parts in the order in which a bar shows them, with what draws them."""


def print_timings(summary: GenerationSummary) -> None:
    """Print a finished answer's waterfall to standard output."""
    for pause in summary.pauses:
        print_note(f"a node was lost; {pause:.2f} s later the answer went on")
    hops = hop_times(summary.timings)
    if not hops:
        print_note("no timings: the answer was ended here, at a stop string")
    elif out.is_terminal:
        out.print(_prefill_table(hops))
        out.print(_decode_table(hops))
        out.print(_legend())
    else:
        rows = [hop.fields() for hop in hops]
        for row in (rows[0], *(row.values() for row in rows)):
            sys.stdout.write("\t".join(map(str, row)) + "\n")
        sys.stdout.flush()


def cells(start: float, share: Share, full: float) -> tuple[int, ...]:
    """Cells of blank and of each of :data:`PARTS` in a bar of which ``full`` fills all cells.

    Edges are rounded, not lengths, so that bars which meet in time meet in the picture.
    """
    edges = [0.0, start]
    for name, _, _ in PARTS:
        edges.append(edges[-1] + getattr(share, name))
    rounded = [round(edge / full * BAR_CELLS) if full else 0 for edge in edges]
    return tuple(end - begin for begin, end in pairwise(rounded))


def _bar(start: float, share: Share, full: float) -> Text:
    blank, *lengths = cells(start, share, full)
    bar = Text(" " * blank)
    for (_, sign, style), length in zip(PARTS, lengths, strict=True):
        bar.append(sign * length, style)
    return bar


def _prefill_table(hops: Sequence[HopTimes]) -> Table:
    tokens = max(hop.prefill_tokens for hop in hops)
    table = _table(f"prompt: {tokens} tokens, milliseconds")
    full = max(hop.prefill_start + hop.prefill.total for hop in hops)
    for hop in hops:
        _add(table, hop, hop.prefill, _bar(hop.prefill_start, hop.prefill, full))
    return table


def _decode_table(hops: Sequence[HopTimes]) -> Table:
    """One step's way through the chain: a node's bar begins where the one before it ends."""
    steps = max(hop.decode_steps for hop in hops)
    table = _table(f"answer: {steps} steps, milliseconds a step (wait: on the link)")
    full = sum(hop.decode.total for hop in hops)
    start = 0.0
    for hop in hops:
        _add(table, hop, hop.decode, _bar(start, hop.decode, full))
        start += hop.decode.total
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("node", "layers"):
        table.add_column(name)
    for name, _, _ in PARTS:
        table.add_column(name, justify="right")
    table.add_column("", width=BAR_CELLS, no_wrap=True)
    return table


def _add(table: Table, hop: HopTimes, share: Share, bar: Text) -> None:
    numbers = [f"{getattr(share, name):.2f}" for name, _, _ in PARTS]
    # Brackets of a range aren't markup.
    table.add_row(Text(hop.node), Text(hop.layers), *numbers, bar)


def _legend() -> Text:
    legend = Text()
    for name, sign, style in PARTS:
        legend.append(sign * 2, style)
        legend.append(f" {name}  ")
    return legend
