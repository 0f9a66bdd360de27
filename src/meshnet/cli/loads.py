"""How busy a worker is, from its figures, as its machine tells the tracker."""

from __future__ import annotations

from meshnet.node.figures import Phase
from meshnet.node.snapshot import NodeSnapshot, StepReading
from meshnet.tracker import messages as msg


class LoadMeter:
    """Remembers what was told last: a step's time is that of the steps since."""

    def __init__(self) -> None:
        self.told = msg.LoadReport()
        self._decoded = (0, 0.0)

    def restart(self) -> None:
        """Another worker counts from nothing."""
        self._decoded = (0, 0.0)

    def read(self, figures: NodeSnapshot) -> msg.LoadReport:
        """What to tell now."""
        decode = figures.steps[Phase.DECODE].seconds
        count, total = decode.count - self._decoded[0], decode.total - self._decoded[1]
        self._decoded = (decode.count, decode.total)
        self.told = msg.LoadReport(
            open_sessions=figures.open_sessions,
            max_sessions=figures.max_sessions,
            queued_steps=figures.queued_steps,
            step_seconds=total / count if count > 0 and total > 0 else 0.0,
            kv_used=figures.engine.positions,
            kv_limit=figures.positions_limit,
            resident_bytes=figures.resident_bytes or 0,
            prefill=_counts(figures.steps[Phase.PREFILL]),
            decode=_counts(figures.steps[Phase.DECODE]),
        )
        return self.told


def _counts(steps: StepReading) -> msg.StepCounts:
    return msg.StepCounts(
        steps=steps.seconds.count,
        step_seconds=steps.seconds.total,
        waits=steps.queued_seconds.count,
        wait_seconds=steps.queued_seconds.total,
        rows=int(steps.rows.total),
    )
