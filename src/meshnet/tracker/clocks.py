"""Where the tracker has its times from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """A steady clock and the wall's."""

    steady: Callable[[], float] = time.monotonic
    """Seconds from anywhere that never jump: for leases, silence and all that is waited for."""
    wall: Callable[[], float] = time.time
    """Unix seconds: for certificates, tokens and owners' hours.

    Asked each time, for a machine without a clock of its own has the right one only later on.
    """
