"""The words and kinds of errors that a transport itself makes."""

from __future__ import annotations

import logging

from meshnet.domain.errors import InternalError, MeshnetError, NodeLostError, NodeUnreachableError
from meshnet.domain.ids import Address

_LOG = logging.getLogger(__name__)


def lost(address: Address, why: str) -> NodeLostError:
    """The stream to ``address`` is broken or ended."""
    return NodeLostError(f"{address}: the stream is gone: {why}", address=address)


def unreachable(address: Address, why: str) -> NodeUnreachableError:
    """No connection to ``address``, or no answer from it."""
    return NodeUnreachableError(f"{address}: {why}", address=address)


def no_answer(address: Address, timeout_seconds: float) -> NodeUnreachableError:
    """Nothing came from ``address`` in time."""
    return unreachable(
        address,
        f"no answer within {timeout_seconds:g} s; is the node running, and can it be reached?",
    )


def reported(error: Exception, doing: str) -> MeshnetError:
    """What a peer is told of an error of a service: itself, or that there is a fault here.

    A fault is logged with its traceback, since the peer gets no more than its text.
    """
    if isinstance(error, MeshnetError):
        return error
    _LOG.error("%s failed", doing, exc_info=error)
    return InternalError(f"{doing} failed: {type(error).__name__}: {error}")
