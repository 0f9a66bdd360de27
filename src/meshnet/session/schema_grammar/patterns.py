"""Regular expressions as GBNF, for a text in a JSON string: what JSON escapes is escaped.

The expressions are those of ECMA-262 that JSON Schema recommends (draft 2020-12, 6.4): literals,
classes, groups, alternatives and quantifiers. Where dialects differ on what a class holds, only
what all of them agree on is written: ``\\w``, ``\\d`` and ``\\s``, and what is outside of them,
are ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshnet.engine.grammar_text import MAX_REPETITIONS
from meshnet.session.schema_grammar.gbnf import (
    EMPTY,
    RAW,
    GrammarWriter,
    Range,
    characters,
    common_ranges,
    either,
    literal,
    minus,
)

MAX_DEPTH: Final = 30
"""Groups within one another."""
_ALL: Final[Sequence[Range]] = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_ASCII: Final[Sequence[Range]] = ((0, 0x7F),)
_SETS: Final[dict[str, Sequence[Range]]] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
}
_CONTROLS: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_ESCAPED: Final = {
    0x22: '\\"',
    0x5C: "\\\\",
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
}
"""How JSON writes them; other control characters are left out."""
_SPECIAL: Final = frozenset("^$\\.*+?()[{|")


class PatternError(Exception):
    """An expression that isn't valid, or has a part that can't be written as a grammar."""


def pattern_body(writer: GrammarWriter, pattern: str) -> str:
    """What stands between a JSON string's quotes if the expression matches it somewhere.

    Raises :class:`PatternError` that names the part.
    """
    return _Parser(writer, pattern).whole()


class _Parser:
    def __init__(self, writer: GrammarWriter, text: str) -> None:
        self._writer = writer
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> str:
        """Alternatives, each with anchors of its own."""
        bodies = []
        while True:
            bodies.append(self._anchored())
            if not self._take("|"):
                break
        if self._at < len(self._text):
            raise PatternError(f"{self._text[self._at]!r} at {self._at} has no counterpart")
        return either(bodies)

    def _anchored(self) -> str:
        anything = f"{self._writer.common('char')}*"
        before = "" if self._take("^") else anything
        body = self._sequence()
        after = "" if self._take("$") else anything
        return " ".join(filter(None, (before, body, after))) or EMPTY

    def _sequence(self) -> str:
        parts = []
        while self._at < len(self._text) and self._peek() not in "|)$":
            if self._peek() == "^":
                raise PatternError(f"'^' at {self._at} isn't at the beginning")
            parts.append(self._term())
        return " ".join(parts)

    def _term(self) -> str:
        start = self._at
        atom = self._atom()
        times = self._times()
        if times is None:
            return atom
        if self._peek() in ("*", "+"):
            raise PatternError(f"{self._text[start : self._at + 1]!r} repeats possessively")
        self._take("?")  # A quantifier that takes as little as it can matches the same texts.
        symbol = self._writer.rule(atom)
        return f"{symbol}{times}"

    def _times(self) -> str | None:
        for simple in "*+?":
            if self._take(simple):
                return simple
        if not self._take("{"):
            return None
        low = self._number()
        if low is None:
            raise PatternError(f"'{{' at {self._at - 1} must be written as '\\{{'")
        high: int | None = low
        if self._take(","):
            high = self._number()
        if not self._take("}"):
            raise PatternError(f"the quantifier before {self._at} isn't closed")
        if max(low, high or 0) > MAX_REPETITIONS:
            raise PatternError(f"it repeats something more than {MAX_REPETITIONS} times")
        return f"{{{low},{'' if high is None else high}}}"

    def _number(self) -> int | None:
        start = self._at
        while self._peek().isdecimal() and self._peek().isascii():
            self._at += 1
        return int(self._text[start : self._at][:9]) if self._at > start else None

    def _atom(self) -> str:
        if self._take("("):
            return self._group()
        if self._take("["):
            return self._written(self._class())
        if self._take("."):
            return self._written(minus(_ALL, [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))
        if self._take("\\"):
            return self._written(self._escape(in_class=False))
        character = self._next()
        if character in _SPECIAL:
            raise PatternError(f"{character!r} at {self._at - 1} has no place there")
        return self._written([(ord(character), ord(character))])

    def _group(self) -> str:
        if self._take("?") and not self._take(":"):
            if self._peek() != "<" or self._text[self._at + 1 : self._at + 2] in ("=", "!", ""):
                part = f"(?{self._text[self._at : self._at + 2]}"
                raise PatternError(f"{part!r} looks around or sets a flag")
            self._at = self._text.find(">", self._at) + 1 or len(self._text)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError(f"it nests more than {MAX_DEPTH} groups")
        bodies = [self._sequence() or EMPTY]
        while self._take("|"):
            bodies.append(self._sequence() or EMPTY)
        if self._peek() == "$":
            raise PatternError(f"'$' at {self._at} isn't at the end")
        if not self._take(")"):
            raise PatternError("a group isn't closed")
        self._depth -= 1
        return self._writer.rule(" | ".join(bodies))

    def _class(self) -> list[Range]:
        inverse = self._take("^")
        found: list[Range] = []
        wide = False
        while not self._take("]"):
            low = self._member()
            wide = wide or len(low) != 1 or low[0][0] != low[0][1]
            single = len(low) == 1 and low[0][0] == low[0][1]
            if single and self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise PatternError(f"the range before {self._at} isn't one")
                low = [(low[0][0], high[0][1])]
            found += low
        # What a set like \d leaves out beyond ASCII depends on the dialect.
        return minus(_ASCII if wide else _ALL, found) if inverse else found

    def _member(self) -> list[Range]:
        if self._take("\\"):
            return self._escape(in_class=True)
        character = self._next()
        return [(ord(character), ord(character))]

    def _escape(self, *, in_class: bool) -> list[Range]:
        kind = self._next()
        if kind.lower() in _SETS:
            ranges = _SETS[kind.lower()]
            return list(ranges) if kind.islower() else minus(_ASCII, ranges)
        if kind in _CONTROLS and not (kind == "0" and self._peek().isdecimal()):
            code = _CONTROLS[kind]
        elif kind in "xu":
            code = self._hex(2 if kind == "x" else 4)
        elif kind == "b" and in_class:
            code = 0x08
        elif kind.isalnum():
            raise PatternError(f"'\\{kind}' isn't offered")
        else:
            code = ord(kind)
        return [(code, code)]

    def _hex(self, count: int) -> int:
        text = self._text[self._at : self._at + count]
        if len(text) < count or not all(it in "0123456789abcdefABCDEF" for it in text):
            raise PatternError(f"an escape at {self._at} needs {count} hexadecimal digits")
        self._at += count
        return int(text, 16)

    def _written(self, ranges: Sequence[Range]) -> str:
        """A character of the ranges, as JSON writes it."""
        bodies = []
        raw = common_ranges(ranges, RAW)
        if len(raw) == 1 and raw[0][0] == raw[0][1]:
            bodies.append(literal(chr(raw[0][0])))
        elif raw:
            bodies.append(characters(raw))
        for code, text in _ESCAPED.items():
            if any(low <= code <= high for low, high in ranges):
                bodies.append(literal(text))
        if not bodies:
            raise PatternError(
                f"no character that could be written matches the part before {self._at}"
            )
        return either(bodies)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> bool:
        found = self._peek() == wanted
        self._at += found
        return found

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise PatternError("it ends too early")
        self._at += 1
        return character
