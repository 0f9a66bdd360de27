"""Text of strangers, made fit for a terminal."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """The text's first ``most`` characters, with ``?`` for those that could steer a terminal."""
    return "".join(it if it.isprintable() else "?" for it in text[:most])
