"""Remembers what was measured about a file, since measuring takes as long as hundreds of steps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext
from meshnet.engine.llamacpp.exactness import PROBE_VERSION, Exactness, measure_exactness
from meshnet.engine.llamacpp.notes import read_note, write_note

_EXACTNESS: Final = TypeAdapter(Exactness)


def known_exactness(context: LlamaContext, request: LoadRequest, folder: Path | None) -> Exactness:
    """What an earlier load measured of the same file, recipe and limits, or measured now.

    Kept in ``folder``, one small file each; with None nothing is. A folder that can't be written
    costs time, not the load.
    """
    if folder is None or request.model_path is None:
        return measure_exactness(context, request)
    note = folder / f"{_name(request.model_path, request)}.exactness.json"
    found = read_note(note, _EXACTNESS.validate_json)
    if found is None:
        found = measure_exactness(context, request)
        if found.complete:
            write_note(note, _EXACTNESS.dump_json(found))
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
