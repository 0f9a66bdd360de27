"""A gateway's live state as text: the dashboard's event drawn for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshnet.cli.output import human_size

State = Mapping[str, Any]
"""One event of ``GET /dashboard/events``; see ``docs/dashboard.md``."""

UNKNOWN: Final = "-"
STYLES: Final[Mapping[str, tuple[str, str, str]]] = {
    "ready": ("●", "█", "green"),
    "loading": ("◐", "▒", "cyan"),
    "draining": ("◒", "▓", "yellow"),
    "spare": ("○", " ", "bright_black"),
    "failed": ("▲", "▚", "red"),
    "down": ("✕", "▚", "red"),
}
"""Of each state: its mark, what fills its layers, and its colour."""
NODE_COLUMNS: Final = (
    "machine",
    "state",
    "layers",
    "sessions",
    "waiting",
    "kv",
    "memory",
    "busy",
    "step",
    "round trip",
)
REQUEST_COLUMNS: Final = ("request", "state", "prompt", "tokens", "tokens/s", "seconds")
_RECENT: Final = 5


def headline(state: State) -> str:
    """The network and its pace in one line."""
    network, point = state["network"], state["point"]
    if network is None:
        return f"the network can't be looked at: {state['problem']}"
    parts = [
        network["model"],
        f"{network['total_layers']} layers",
        f"{point['tokens_per_second']:.1f} tokens/s",
        f"{point['in_flight']} in flight",
    ]
    missing = len(network["missing_layers"])
    return " · ".join([*parts, f"{missing} layers can't be computed"] if missing else parts)


def strip(nodes: Sequence[State], total_layers: int, width: int) -> Text:
    """The model from its first layer to its last in ``width`` cells; dots where nobody holds it.

    Where several machines hold a layer, one that is ready is shown.
    """
    text = Text()
    shown = [_holder(nodes, cell * total_layers // width) for cell in range(width)]
    for cell, holder in enumerate(shown):
        if holder is None:
            text.append("·", "red")
            continue
        _, fill, colour = STYLES[holder["state"]]
        begins = cell > 0 and holder is not shown[cell - 1]
        # A gap tells machines apart, unless it would be all that is seen of one.
        gap = begins and cell + 1 < width and holder is shown[cell + 1]
        text.append(" " if gap else fill, colour)
    return text


def _holder(nodes: Sequence[State], layer: int) -> State | None:
    held = [it for it in nodes if it["layers"] and it["layers"][0] <= layer < it["layers"][1]]
    return min(held, key=lambda it: it["state"] != "ready", default=None)


def node_rows(state: State) -> list[tuple[str, ...]]:
    """A row for each machine, in the order of its layers, with spare ones last."""
    trips = {it["target"]: it["round_trip_ms"] for it in state["links"] if not it["source"]}
    ordered = sorted(state["nodes"], key=lambda it: (it["layers"] or [1 << 30], it["id"]))
    return [_node_row(node, trips.get(node["id"])) for node in ordered]


def request_rows(state: State) -> list[tuple[str, ...]]:
    """A row for each request under way, and for some that are over."""
    under_way = [it for it in state["requests"] if not it["over"]]
    over = [it for it in state["requests"] if it["over"]][:_RECENT]
    return [_request_row(request) for request in (*under_way, *over)]


def plain(state: State) -> Iterator[str]:
    """Lines for a pipe: tables with tabs between columns, each under a heading of its columns."""
    yield headline(state)
    for columns, rows in _tables(state):
        yield "\t".join(columns)
        yield from ("\t".join(row) for row in rows)


def drawn(state: State, width: int, note: str = "") -> RenderableType:
    """What a terminal of ``width`` columns shows; ``note`` is why it isn't of now."""
    parts: list[RenderableType] = [Text(headline(state), "bold")]
    network = state["network"]
    if note:
        parts.append(Text(note, "red"))
    if network is not None:
        parts += [Text(), strip(state["nodes"], network["total_layers"], max(width, 10)), Text()]
    for columns, rows in _tables(state):
        parts += [_table(columns, rows), Text()]
    return Group(*parts)


def _tables(state: State) -> Iterator[tuple[Sequence[str], list[tuple[str, ...]]]]:
    for columns, rows in (
        (NODE_COLUMNS, node_rows(state)),
        (REQUEST_COLUMNS, request_rows(state)),
    ):
        if rows:
            yield columns, rows


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
    for row in rows:
        mark, _, colour = STYLES.get(row[1].split(" ")[0], ("", "", ""))
        state = Text(f"{mark} {row[1]}".strip(), colour)
        table.add_row(Text(row[0]), state, *map(Text, row[2:]))
    return table


def _node_row(node: State, round_trip: float | None) -> tuple[str, ...]:
    layers = node["layers"]
    sessions = _of(node["open_sessions"], node["max_sessions"])
    return (
        node["name"],
        node["state"],
        f"{layers[0]}:{layers[1]}" if layers else UNKNOWN,
        sessions,
        _count(node["queued_steps"]),
        _of(node["kv_used"], node["kv_limit"]),
        UNKNOWN if node["memory_bytes"] is None else human_size(node["memory_bytes"]),
        UNKNOWN if node["busy"] is None else f"{node['busy']:.0%}",
        _milliseconds(node["step_ms"]),
        _milliseconds(round_trip),
    )


def _request_row(request: State) -> tuple[str, ...]:
    pace = request["tokens_per_second"]
    end = f" ({request['end']})" if request["end"] else ""
    return (
        request["id"],
        f"{request['state']}{end}",
        _count(request["prompt_tokens"]),
        _count(request["completion_tokens"]),
        UNKNOWN if pace is None else f"{pace:.1f}",
        f"{request['seconds']:.1f}",
    )


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _of(value: int | None, limit: int | None) -> str:
    if value is None:
        return UNKNOWN
    return str(value) if limit is None else f"{value}/{limit}"


def _milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} ms"
