"""What was predicted of a cluster and what was measured, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.cli.output import human_size, print_line, print_table
from meshnet.tracker import messages as msg
from meshnet.tracker.measurements import LinkReport, RunsStatus

TRACKER = "tracker"


def print_predictions(model: msg.ModelStatus) -> None:
    """What is predicted of a model's route, and beside it what the last generations took."""
    predicted, ran = model.predicted, model.ran
    if predicted is not None:
        first = _first(predicted.predicted_first_seconds, f" of {msg.PROMPT_TOKENS}")
        print_line(f"  predicted  {1 / predicted.predicted_token_seconds:.1f} tokens/s{first}")
    if ran is not None:
        print_line(f"  measured   {ran_line(ran)}")


def ran_line(ran: RunsStatus) -> str:
    """The last generations: what they took, and what was predicted of them."""
    text = f"{1 / ran.token_seconds:.1f} tokens/s ({1 / ran.predicted_token_seconds:.1f} predicted)"
    if ran.first_seconds:
        text += (
            f", first token after {ran.first_seconds:.2f} s "
            f"({ran.predicted_first_seconds:.2f} predicted)"
        )
    return f"{text}, median of {ran.runs}"


def step_cell(it: msg.MachineStatus) -> str:
    """A machine's decode step, as measured and as predicted, in milliseconds."""
    if it.step is None:
        return ""
    measured, predicted = it.step.measured_seconds, it.step.predicted_seconds
    told = f"{measured * 1e3:.1f}" if measured else "-"
    return f"{told} ({predicted * 1e3:.1f})" if predicted else told


def print_links(machines: Sequence[msg.MachineStatus]) -> None:
    """The links that machines have measured, if there are any."""
    names = {it.node_id: it.name for it in machines}
    relayed = {it.node_id for it in machines if it.way is msg.Way.RELAYED}
    rows = [
        (
            it.name,
            TRACKER if link.node_id is None else names.get(link.node_id, link.node_id),
            f"{link.round_trip_seconds * 1e3:.2f}",
            rate_cell(link),
            "relayed" if link.node_id in relayed else "",
        )
        for it in machines
        if it.state is not msg.MachineState.DOWN
        for link in it.links
    ]
    if rows:
        print_table("links", ("from", "to", "round trip, ms", "rate", "note"), rows)


def rate_cell(link: LinkReport) -> str:
    """A link's rate for people."""
    return f"{human_size(link.bytes_per_second)}/s" if link.bytes_per_second else ""


def _first(seconds: float, of: str = "") -> str:
    return f", first token{of} after {seconds:.2f} s" if seconds else ""
