"""How often a machine may say something. Pure; time is handed in."""

from __future__ import annotations

from typing import Final

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import NodeId

APART_SECONDS: Final = 0.1
"""Between two messages of a machine, in the mean."""
BURST: Final = 10
"""So many may come at once, as after a pause of the network."""


class Pace:
    """Counts each machine's messages of a kind. What it keeps of one is when its burst is over."""

    def __init__(self) -> None:
        self._over_at: dict[NodeId, float] = {}

    def require(self, node_id: NodeId, now: float) -> None:
        """Count one; raises :class:`ResourceExhaustedError` for one too many, which isn't."""
        over_at = max(self._over_at.get(node_id, now), now) + APART_SECONDS
        # Half a one more, since sums of tenths aren't exact.
        if over_at - now > (BURST + 0.5) * APART_SECONDS:
            raise ResourceExhaustedError(
                f"machine {node_id} sends this more than once each {APART_SECONDS:g} s; wait"
            )
        self._over_at[node_id] = over_at

    def sweep(self, now: float) -> None:
        """Forget those that have paused long enough."""
        for node_id in [each for each, over_at in self._over_at.items() if over_at <= now]:
            del self._over_at[node_id]
