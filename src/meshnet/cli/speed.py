"""How fast this machine is, asked of a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from typing import Final

from meshnet.cli.settings import Settings
from meshnet.domain.errors import EngineError

CALIBRATION_SECONDS: Final = 30.0
"""For a measurement of two seconds, and loading libllama on a slow machine."""
MOST_DEVICES: Final = 64
MOST_LETTERS: Final = 200
"""As many as a heartbeat tells of."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What calibration found."""

    bytes_per_second: float
    devices: tuple[str, ...]


async def calibrate(settings: Settings, threads: int) -> Speed:
    """How fast this machine multiplies weights, in a process of its own.

    Raises :class:`EngineError` if that fails.
    """
    command = (sys.executable, "-m", "meshnet.engine.llamacpp.calibration")
    process = await asyncio.create_subprocess_exec(
        *command,
        settings.notes,
        str(threads),
        *settings.variables,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(CALIBRATION_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise EngineError(
            f"measuring this machine's speed took more than {CALIBRATION_SECONDS:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        found = json.loads(out)
        devices = tuple(str(name)[:MOST_LETTERS] for name in found["devices"][:MOST_DEVICES])
        return Speed(float(found["bytes_per_second"]), devices)
    except (ValueError, KeyError, TypeError):
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise EngineError(f"this machine's speed can't be measured: {''.join(last)}") from None
