"""Small files that remember what took long to measure. One that is of no use costs time alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

LOGGER: Final = logging.getLogger(__name__)

T = TypeVar("T")


def read_note(note: Path, parse: Callable[[bytes], T]) -> T | None:
    """What a note says; None if there is none, or one that can't be read.

    ``parse`` raises ``ValueError`` for a text that is no such note.
    """
    try:
        return parse(note.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        LOGGER.warning("%s can't be read and is measured anew: %s", note, error)
        return None


def write_note(note: Path, text: bytes) -> None:
    """Write a note in one piece, as others may read it meanwhile."""
    part = note.with_suffix(f".{os.getpid()}.part")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(text)
        part.replace(note)
    except OSError as error:
        LOGGER.warning("%s can't be written: %s", note, error)
