"""Numbers within bounds, as GBNF: decimal digits have no order that a grammar could compare."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from meshnet.session.schema_grammar.gbnf import either

LARGEST: Final = 10**15
"""Without a bound, numbers go so far: a float64 holds all digits of them."""
DECIMALS: Final = 2
"""Digits behind the point of a number with a bound, if the bounds have no more themselves."""
MAX_DECIMALS: Final = 9

Digits = tuple[tuple[int, int], ...]
"""The lowest and the highest digit of each place."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ``minimum`` and its siblings say; None where there is no bound."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    """Whether the bound itself is outside."""
    high_open: bool = False

    def scaled(self, decimals: int) -> tuple[int, int]:
        """The lowest and the highest number within, in units of the last decimal."""
        unit = Decimal(10) ** decimals
        low, high = Decimal(-LARGEST), Decimal(LARGEST)
        low = low if self.low is None else max(low, self.low)
        high = high if self.high is None else min(high, self.high)
        first = int((low * unit).to_integral_value(ROUND_CEILING))
        last = int((high * unit).to_integral_value(ROUND_FLOOR))
        if self.low_open and first == low * unit:
            first += 1
        if self.high_open and last == high * unit:
            last -= 1
        return first, last


def integers(bounds: Bounds) -> str | None:
    """The whole numbers within the bounds; None if there are none."""
    return _fixed(*bounds.scaled(0), 0)


def numbers(bounds: Bounds) -> str | None:
    """The whole numbers within the bounds, and those with some decimals; None if there are none.

    Raises ``ValueError`` for a bound with more decimals than ``MAX_DECIMALS``.
    """
    stated = [_decimals(bound) for bound in (bounds.low, bounds.high) if bound is not None]
    decimals = max(DECIMALS, *stated)
    if decimals > MAX_DECIMALS:
        raise ValueError(f"more than {MAX_DECIMALS} decimals")
    found = [integers(bounds), _fixed(*bounds.scaled(decimals), decimals)]
    bodies = [body for body in found if body is not None]
    return either(bodies) if bodies else None


def _decimals(bound: Decimal) -> int:
    exponent = bound.normalize().as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


def _fixed(low: int, high: int, decimals: int) -> str | None:
    bodies = []
    if low < 0:
        bodies += [f'"-" {_written(it, decimals)}' for it in digits(max(1, -high), -low, decimals)]
    if high >= 0:
        bodies += [_written(it, decimals) for it in digits(max(0, low), high, decimals)]
    return either(bodies) if bodies else None


def digits(low: int, high: int, decimals: int = 0) -> list[Digits]:
    """Digits of exactly the numbers from ``low`` to ``high``, at least one before the decimals."""
    found: list[Digits] = []
    shortest = decimals + 1
    length = max(shortest, len(str(low)))
    while length <= max(shortest, len(str(high))):
        first = 0 if length == shortest else 10 ** (length - 1)
        start, end = max(low, first), min(high, 10**length - 1)
        if start <= end:
            found += _between(f"{start:0{length}}", f"{end:0{length}}")
        length += 1
    return found


def _between(low: str, high: str) -> list[Digits]:
    """The same of two numbers with equally many digits."""
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if not rest:
        return [((first, last),)]
    if first == last:
        return [((first, first), *more) for more in _between(low[1:], high[1:])]
    found: list[Digits] = []
    if low[1:].strip("0"):
        found += [((first, first), *more) for more in _between(low[1:], "9" * rest)]
        first += 1
    above: list[Digits] = []
    if high[1:].strip("9"):
        above = [((last, last), *more) for more in _between("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        found.append(((first, last), *((0, 9),) * rest))
    return found + above


def _written(places: Digits, decimals: int) -> str:
    whole = len(places) - decimals
    body = _places(places[:whole])
    return f'{body} "." {_places(places[whole:])}' if decimals else body


def _places(places: Sequence[tuple[int, int]]) -> str:
    parts = []
    for (low, high), run in itertools.groupby(places):
        count = len(list(run))
        one = f'"{low}"' if low == high else f"[{low}-{high}]"
        parts.append(one if count == 1 else f"{one}{{{count}}}")
    return " ".join(parts)
