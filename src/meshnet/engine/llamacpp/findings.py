"""Remembers what was measured about a file, since measuring takes as long as hundreds of steps."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import astuple
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext
from meshnet.engine.llamacpp.exactness import PROBE_VERSION, Exactness, measure_exactness

LOGGER: Final = logging.getLogger(__name__)
_EXACTNESS: Final = TypeAdapter(Exactness)


def known_exactness(context: LlamaContext, request: LoadRequest, folder: Path | None) -> Exactness:
    """What an earlier load measured of the same file, recipe and limits, or measured now.

    Kept in ``folder``, one small file each; with None nothing is. A folder that can't be written
    costs time, not the load.
    """
    if folder is None or request.model_path is None:
        return measure_exactness(context, request)
    note = folder / f"{_name(request.model_path, request)}.exactness.json"
    found = _read(note)
    if found is None:
        found = measure_exactness(context, request)
        if found.complete:
            _write(note, found)
    return found


def _name(path: Path, request: LoadRequest) -> str:
    """Of all that the outcome depends on: the file as it is now, what computes, what is asked."""
    status = path.stat()
    about = [
        PROBE_VERSION,
        str(path),
        status.st_size,
        status.st_mtime_ns,
        request.recipe.fingerprint().runtime_recipe_digest,
        str(request.layers),
        astuple(request.limits),
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _read(note: Path) -> Exactness | None:
    try:
        return _EXACTNESS.validate_json(note.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        LOGGER.warning("%s can't be read and is measured anew: %s", note, error)
        return None


def _write(note: Path, found: Exactness) -> None:
    part = note.with_suffix(f".{os.getpid()}.part")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(_EXACTNESS.dump_json(found))
        part.replace(note)
    except OSError as error:
        LOGGER.warning("%s can't be written: %s", note, error)
