"""What can be told of a grammar's text without understanding it: whether it stays within bounds.

GBNF is llama.cpp's notation (``grammars/README.md`` of llama.cpp). libllama's parser recurses as
deep as parentheses are nested, and takes a number of repetitions above its own limit for none.
"""

from __future__ import annotations

import re
from typing import Final

from meshnet.domain.errors import InvalidArgumentError

MAX_REPETITIONS: Final = 2000
"""``MAX_REPETITION_THRESHOLD`` of ``llama-grammar.cpp``."""
MAX_NESTED: Final = 100
"""Parentheses within one another."""
# Everything is taken once and never given back, so that the time grows as the text does.
_MARKS: Final = re.compile(
    r"""
    "(?:\\.|[^"\\])*+(?:"|(?P<text>\\?\Z))
    |\[(?:\\.|[^\]\\])*+(?:\]|(?P<class>\\?\Z))
    |\#[^\r\n]*+
    |[()]
    |\{\s*+(?P<low>\d++)\s*+(?:,\s*+(?P<high>\d*+)\s*+)?\}
    """,
    re.DOTALL | re.VERBOSE,
)
_NUMBERED: Final = re.compile(r"<\[(\d{1,9})\]>")


def require_bounded(grammar: str) -> None:
    """Raise :class:`InvalidArgumentError` for nesting or repetitions beyond the bounds.

    And for a text or a class of characters that isn't closed.
    """
    if "\0" in grammar:
        raise InvalidArgumentError("grammar", "it holds the character U+0000; write it as \\x00")
    depth = 0
    for mark in _MARKS.finditer(grammar):
        if mark[0] == "(":
            depth += 1
            if depth > MAX_NESTED:
                raise InvalidArgumentError(
                    "grammar", f"it nests more than {MAX_NESTED} parentheses; use rules instead"
                )
        elif mark[0] == ")":
            depth -= 1
        for part in ("text", "class"):
            if mark[part] is not None:
                raise InvalidArgumentError(
                    "grammar", f"the {part} that begins at character {mark.start()} isn't closed"
                )
        for number in filter(None, (mark["low"], mark["high"])):
            if len(number) > len(str(MAX_REPETITIONS)) or int(number) > MAX_REPETITIONS:
                raise InvalidArgumentError(
                    "grammar",
                    f"it repeats something {number[:20]} times; at most {MAX_REPETITIONS} are kept "
                    f"count of",
                )


def numbered_tokens(grammar: str) -> frozenset[int]:
    """The tokens that it may name by number, ``<[7]>``."""
    return frozenset(map(int, _NUMBERED.findall(grammar)))
