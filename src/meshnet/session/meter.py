"""What rendering a chat template may use, and the count of what it does use."""

from __future__ import annotations

import sys
import time
from collections.abc import ItemsView, KeysView, ValuesView
from dataclasses import dataclass

from jinja2.utils import Namespace

from meshnet.domain.errors import TemplateError


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What a template may use. The defaults leave room for the longest contexts there are."""

    source_characters: int = 1 << 17
    output_characters: int = 1 << 23
    value_bytes: int = 1 << 25
    """Size of any one value."""
    work_bytes: int = 1 << 28
    """Size of all values made while rendering; an item of a loop counts as 16."""
    seconds: float = 10.0


class Meter:
    """Counts what one rendering uses and raises :class:`TemplateError` when it is too much."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._left = limits.work_bytes
        self._output_left = limits.output_characters
        self._deadline = time.monotonic() + limits.seconds

    def step(self) -> None:
        """Check the time."""
        if time.monotonic() > self._deadline:
            raise TemplateError(
                f"the chat template was stopped: it ran for more than {self._limits.seconds:g} s"
            )

    def require(self, size: int) -> None:
        """Check the size of one value."""
        if size > self._limits.value_bytes:
            raise TemplateError(
                f"the chat template was stopped: it uses a value of more than "
                f"{self._limits.value_bytes} bytes"
            )

    def spend(self, size: int) -> None:
        """Count a value of ``size`` bytes that is made, and check the time."""
        self.require(size)
        self._left -= size
        if self._left < 0:
            raise TemplateError(
                f"the chat template was stopped: it makes values of more than "
                f"{self._limits.work_bytes} bytes in all"
            )
        self.step()

    def emit(self, characters: int) -> None:
        """Count output."""
        self._output_left -= characters
        if self._output_left < 0:
            raise TemplateError(
                f"the chat template was stopped: its output has more than "
                f"{self._limits.output_characters} characters"
            )

    def measure(self, *values: object) -> int:
        """Bytes of ``values`` as trees; stops counting when they are too large."""
        total, pending = 0, list(values)
        while pending and total <= self._limits.value_bytes:
            value = pending.pop()
            total += sys.getsizeof(value)
            if isinstance(value, str):
                continue
            if isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
                pending.extend(value)
            elif isinstance(value, dict):
                pending.extend(value)
                pending.extend(value.values())
            elif isinstance(value, Namespace):
                pending.append(value._Namespace__attrs)
        return total
