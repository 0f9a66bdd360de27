"""Which node an error comes from, so that whoever reads it knows where to look."""

from __future__ import annotations

from dataclasses import replace

from meshnet.domain.errors import (
    MeshnetError,
    NodeError,
    ResourceExhaustedError,
    error_from,
    status_of,
)
from meshnet.domain.nodes import Hop


def at_node(error: MeshnetError, hop: Hop) -> MeshnetError:
    """``error`` with the node it happened at in its message and details.

    An error that names a node already, or that is about the request and not about a machine, is
    returned as it is.
    """
    if "node" in error.details or not isinstance(error, NodeError | ResourceExhaustedError):
        return error
    status = status_of(error)
    details = {**status.details, "node": hop.node_id, "layers": str(hop.layers)}
    return error_from(replace(status, message=f"node {hop}: {status.message}", details=details))
