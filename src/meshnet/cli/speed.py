"""How fast this machine is, asked of processes of their own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.domain.errors import EngineError, ResourceExhaustedError
from meshnet.domain.ids import Digest
from meshnet.engine.llamacpp.calibration import UNDISTURBED
from meshnet.engine.llamacpp.rehearsal import ANSWERS, QUESTIONS, Question, RangeFile
from meshnet.model.files import disk_errors, prepare_folder
from meshnet.model.gguf import GgufIndex
from meshnet.model.rehearsal import RehearsedRange, rehearsed_ranges
from meshnet.node.config import CHUNK_TOKENS
from meshnet.node.resources import resources
from meshnet.tracker.speeds import Measured, fitted
from meshnet.tracker.speeds import Speed as ModelSpeed

CALIBRATION_SECONDS: Final = 30.0
"""For a measurement of a second, and loading libllama on a slow machine."""
PROCESS_BYTES: Final = 256 << 20
"""What a process that measures takes besides its files."""
MOST_DEVICES: Final = 64
MOST_LETTERS: Final = 200
"""As many as a heartbeat tells of."""
_CALIBRATION: Final = "meshnet.engine.llamacpp.calibration"
_REHEARSAL: Final = "meshnet.engine.llamacpp.rehearsal"


@dataclass(frozen=True, slots=True)
class Speed:
    """What calibration found."""

    bytes_per_second: float
    devices: tuple[str, ...]


async def calibrate(settings: Settings, threads: int) -> Speed:
    """How fast this machine multiplies weights, in a process of its own.

    Raises :class:`EngineError` if that fails.
    """
    arguments = (str(settings.notes), str(threads), *settings.variables)
    out, err = await _run((_CALIBRATION, *arguments))
    try:
        found = json.loads(out)
        devices = tuple(str(name)[:MOST_LETTERS] for name in found["devices"][:MOST_DEVICES])
        return Speed(float(found["bytes_per_second"]), devices)
    except (ValueError, KeyError, TypeError):
        raise _failed(err) from None


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """This machine's speed with one model."""

    speed: ModelSpeed
    undisturbed: bool
    """Whether nothing else had its processors meanwhile; else it had better be measured again."""


async def rehearse(
    settings: Settings,
    index: GgufIndex,
    digest: Digest,
    options: NodeOptions,
    *,
    anew: bool = False,
) -> Rehearsed:
    """How fast this machine computes a model's layers, as measured before or now.

    ``index`` is the model's header, of which nothing else is needed, and ``digest`` the model's.
    ``anew``: whatever is remembered. Raises :class:`EngineError` if that fails,
    ``ModelUnsupportedError`` for a model that is too short to be measured so,
    ``ResourceExhaustedError`` without the memory for it, and as
    :func:`~meshnet.model.files.disk_errors` does.
    """
    ranges = await asyncio.to_thread(
        rehearsed_ranges, index, digest, allow_unverified=options.allow_unverified
    )
    await asyncio.to_thread(_require_memory, settings.cache, ranges)
    with disk_errors(settings.cache, 0):
        await asyncio.to_thread(prepare_folder, settings.cache, 0)
        with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=settings.cache) as folder:
            files, shapes = await asyncio.to_thread(_written, ranges, Path(folder))
            question = Question(
                files,
                shapes,
                settings.notes,
                ranges[0].plan.total_layers,
                options.threads,
                CHUNK_TOKENS,
                options.gpu_layers,
                options.cache_type_k,
                options.cache_type_v,
                options.flash_attention,
                settings.variables,
                anew,
            )
            out, err = await _run((_REHEARSAL,), QUESTIONS.dump_json(question))
    try:
        answer = ANSWERS.validate_json(out)
    except ValidationError:
        raise _failed(err) from None
    speed = fitted(
        *(
            Measured(held.layer_bytes, took.rested, took.busy, took.chunk, held.output_bytes)
            for held, took in zip(ranges, answer.times, strict=True)
        )
    )
    return Rehearsed(speed, options.gpu_layers > 0 or answer.undisturbed >= UNDISTURBED)


def _require_memory(cache: Path, ranges: Sequence[RehearsedRange]) -> None:
    need = sum(held.total_bytes for held in ranges) + PROCESS_BYTES
    free = resources(cache).memory_bytes
    if need > free:
        raise ResourceExhaustedError(
            f"to be measured with the model's layers takes {need} bytes of memory; {free} are free"
        )


def _written(ranges: Sequence[RehearsedRange], folder: Path) -> tuple[tuple[RangeFile, ...], str]:
    """The ranges' files, and a digest of what they are made of."""
    files, made = [], hashlib.sha256()
    for number, held in enumerate(ranges):
        path, layers = folder / f"{number}.gguf", held.plan.layers
        made.update(held.write(path).encode())
        files.append(RangeFile(path, layers.start, layers.end))
    return tuple(files), made.hexdigest()


async def _run(module: Sequence[str], question: bytes | None = None) -> tuple[bytes, bytes]:
    """What a module with its arguments prints, and what it says on standard error."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *module,
            stdin=DEVNULL if question is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
    except OSError as error:
        raise EngineError(
            f"a process that measures this machine's speed can't be started: {error.strerror}"
        ) from error
    try:
        async with asyncio.timeout(CALIBRATION_SECONDS):
            return await process.communicate(question)
    except TimeoutError:
        raise EngineError(
            f"measuring this machine's speed took more than {CALIBRATION_SECONDS:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _failed(said: bytes) -> EngineError:
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    return EngineError(f"this machine's speed can't be measured: {''.join(last)}")
