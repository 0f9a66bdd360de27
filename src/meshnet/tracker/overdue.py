"""What the cluster needn't know any more. Pure."""

from __future__ import annotations

from meshnet.tracker.events import Event, NodeForgotten, TokenRevoked
from meshnet.tracker.observed import Observed
from meshnet.tracker.state import ClusterState


def overdue(state: ClusterState, observed: Observed, now: float, unix: float) -> list[Event]:
    """Tokens that aren't good any more, and machines that aren't to be listed."""
    over = [key for key, token in state.tokens.items() if unix >= token.expires_unix]
    tokens = [TokenRevoked(key) for key in over]
    limit = observed.policy.forget_seconds
    ghosts = [
        NodeForgotten(node)
        for node, member in state.members.items()
        # A drained one would come back as one that isn't.
        if not member.drained and observed.silent_seconds(node, now) > limit
    ]
    return [*tokens, *ghosts]
