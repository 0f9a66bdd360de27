"""Writing GBNF, llama.cpp's notation of grammars (``grammars/README.md`` of llama.cpp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from meshnet.engine.grammar_text import MAX_REPETITIONS

MAX_COUNT: Final = 10_000
"""Repetitions that are kept count of here: those of libllama, some of them one after the other."""
_PIECE: Final = MAX_REPETITIONS // 2

EMPTY: Final = '""'
"""No text; an alternative that is left empty would go on with the next line."""

Range = tuple[int, int]
"""First and last code point."""

RAW: Final[Sequence[Range]] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""Characters that stand for themselves in a JSON string (RFC 8259, section 7)."""

_COMMON: Final = {
    "ws": '( " " | "\\n" " "{0,16} )?',
    "hex": "[0-9a-fA-F]",
    # No half of a surrogate pair, which no text can hold.
    "escape": '"\\\\" ( ["\\\\/bfnrt] | "u" ( [0-9a-cefA-CEF] hex | [dD] [0-7] ) hex hex )',
    "char": "[\\x20-\\x21\\x23-\\x5B\\x5D-\\uD7FF\\uE000-\\U0010FFFF] | escape",
    "string": '"\\"" char* "\\""',
    "whole": '"0" | [1-9] [0-9]{0,15}',
    "integer": '"-"? whole',
    "number": 'integer ( "." [0-9]{1,15} )? ( [eE] [-+]? [0-9]{1,2} )?',
    "member": 'string ":" ws value',
    "object": '"{" ws ( member ( "," ws member )* ws )? "}"',
    "array": '"[" ws ( value ( "," ws value )* ws )? "]"',
    "value": 'object | array | string | number | "true" | "false" | "null"',
}
_NEEDS: Final = {
    "escape": ("hex",),
    "char": ("escape",),
    "string": ("char",),
    "integer": ("whole",),
    "number": ("integer",),
    "member": ("string", "ws", "value"),
    "object": ("member", "ws"),
    "array": ("value", "ws"),
    "value": ("object", "array", "string", "number"),
}


class GrammarWriter:
    """Collects rules; equal ones get one name."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._count = 0
        self.size = 0
        """Characters of the text, nearly."""

    def common(self, name: str) -> str:
        """The name of a rule that any JSON may need."""
        if name not in self._rules:
            self.define(name, _COMMON[name])
            for needed in _NEEDS.get(name, ()):
                self.common(needed)
        return name

    def reserve(self) -> str:
        """A name for a rule that refers to itself; :meth:`define` it later."""
        self._count += 1
        return f"r{self._count}"

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its rule."""
        self._rules[name] = body
        self.size += len(name) + len(body) + 6

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            self._names[body] = self.reserve()
            self.define(self._names[body], body)
        return self._names[body]

    def repeated(self, symbol: str, low: int, high: int | None) -> str:
        """``symbol``, a rule's name, ``low`` to ``high`` times; None is any number of times.

        Numbers above ``MAX_COUNT`` mustn't be asked for.
        """
        begun: list[str] = []
        while low > MAX_REPETITIONS:
            begun.append(self.rule(f"{symbol}{{{_PIECE}}}"))
            low, high = low - _PIECE, None if high is None else high - _PIECE
        if high is None:
            begun.append(f"{symbol}{{{low},}}" if low else f"{symbol}*")
        elif high > MAX_REPETITIONS:
            begun.append(self._long(symbol, low, high))
        elif high:
            begun.append(f"{symbol}{{{low},{high}}}")
        return " ".join(begun)

    def _long(self, symbol: str, low: int, high: int) -> str:
        piece = self.rule(f"{symbol}{{{_PIECE}}}")
        rest = self.repeated(symbol, max(low - _PIECE, 0), high - _PIECE)
        fewer = f" | {symbol}{{{low},{_PIECE - 1}}}" if low < _PIECE else ""
        return self.rule(f"{piece} {rest}{fewer}")

    def text(self, root: str) -> str:
        """The whole grammar, whose start is ``root``, a body."""
        rules = [f"root ::= {root}", *(f"{name} ::= {it}" for name, it in self._rules.items())]
        return "\n".join(rules) + "\n"


def literal(text: str) -> str:
    """``text`` itself."""
    return '"' + "".join(map(_in_literal, text)) + '"'


def characters(ranges: Iterable[Range]) -> str:
    """One character of the ranges, of which there must be some."""
    members = [
        _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"
        for low, high in ranges
    ]
    return f"[{''.join(members)}]"


def either(bodies: Sequence[str]) -> str:
    """One of several bodies."""
    return bodies[0] if len(bodies) == 1 else f"( {' | '.join(bodies)} )"


def without(writer: GrammarWriter, ranges: Sequence[Range], words: Iterable[str], tail: str) -> str:
    """A text that isn't one of ``words``: characters in ``ranges`` up to the first that differs
    from all of them, then ``tail``."""
    tree = _Tree()
    for word in words:
        node = tree
        for character in word:
            node = node.children.setdefault(character, _Tree())
        node.ends = True
    return _not_in(writer, ranges, tree, tail)


@dataclass(slots=True)
class _Tree:
    """Words by their characters."""

    children: dict[str, _Tree] = field(default_factory=dict)
    ends: bool = False
    rule: str = ""
    """The name of the rule for what may come here."""


def _not_in(writer: GrammarWriter, ranges: Sequence[Range], tree: _Tree, tail: str) -> str:
    nodes = [tree]
    for node in nodes:
        nodes.extend(node.children.values())
    # Children first; words may be longer than calls may be nested.
    for node in reversed(nodes):
        other = minus(ranges, [(ord(key), ord(key)) for key in node.children])
        bodies = [f"{characters(other)} {tail}"]
        bodies += [f"{literal(key)} {child.rule}" for key, child in node.children.items()]
        node.rule = writer.rule(" | ".join(bodies if node.ends else [*bodies, EMPTY]))
    return tree.rule


def minus(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """The ranges without those of ``taken``."""
    left: list[Range] = []
    gaps = _joined(taken)
    at = 0
    # One pass over both: a class of characters may list thousands.
    for first, high in _joined(ranges):
        low = first
        while at < len(gaps) and gaps[at][0] <= high:
            if low < gaps[at][0]:
                left.append((low, gaps[at][0] - 1))
            low = max(low, gaps[at][1] + 1)
            if low > high:
                # This gap may go on into the next range.
                break
            at += 1
        if low <= high:
            left.append((low, high))
    return left


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """The same characters in ranges that are ordered and don't overlap."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def common_ranges(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What is in both."""
    both = [(max(low, first), min(high, last)) for low, high in ranges for first, last in others]
    return sorted({part for part in both if part[0] <= part[1]})


def _in_literal(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return f"\\x{ord(character):02X}" if ord(character) < 0x20 else character


def _in_class(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
