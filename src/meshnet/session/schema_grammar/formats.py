"""Formats of strings (JSON Schema draft 2020-12, validation, 7.3), each as a regular expression.

Every text that an expression matches has the format. A few of the format's texts don't match: the
year 0000, leap seconds, local parts of e-mail addresses
that are quoted or have more than two dots, numbers of more than nine digits in
a duration or a second, and names of hosts with more than six parts, or parts of more than 40
characters. Dates and times are those of RFC 3339, addresses those of RFC 5321 and RFC 4291.
"""

from __future__ import annotations

from typing import Final

_YEAR: Final = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DAY: Final = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_OF_FOUR: Final = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP: Final = f"(?:[0-9]{{2}}{_OF_FOUR}|{_OF_FOUR}00)"
_DATE: Final = f"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)


def _largest_first(units: str) -> str:
    """A number of one unit and, if there are any, of those right behind it."""
    body = ""
    for unit in reversed(units):
        body = f"[0-9]{{1,9}}{unit}(?:{body})?" if body else f"[0-9]{{1,9}}{unit}"
    return body


_CLOCK: Final = f"T(?:{'|'.join(_largest_first(units) for units in ('HMS', 'MS', 'S'))})"
_DAYS: Final = "|".join(_largest_first(units) for units in ("YMD", "MD", "D"))

_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4: Final = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP: Final = "[0-9a-fA-F]{1,4}"


def _after_gap(room: int) -> str:
    """What may follow the two colons: up to ``room`` groups, of which IPv4 takes two."""
    if not room:
        return ""
    bodies = [f"{_GROUP}(?::{_GROUP}){{0,{room - 1}}}"]
    if room >= 2:
        bodies.append(f"(?:{_GROUP}:){{0,{room - 2}}}{_V4}")
    return f"(?:{'|'.join(bodies)})?"


def _after_groups(count: int) -> str:
    """What follows the first ``count`` of eight groups, none of which was left out yet."""
    if count == 8:
        return ""
    bodies = [f":{_after_gap(7 - count)}", _GROUP + _after_groups(count + 1)]
    if count == 6:
        bodies.append(_V4)
    return f":(?:{'|'.join(bodies)})"


_LETTER: Final = "[A-Za-z]"
_PART: Final = "(?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?"
_LABEL: Final = f"[A-Za-z0-9]{_PART}"
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL: Final = rf"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,21}}(?:\.{_ATOM}{{1,20}}){{1,2}})"

FORMATS: Final = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P(?:(?:{_DAYS})(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,9}}W)$",
    "email": rf"^{_LOCAL}@(?:{_LABEL}\.){{1,5}}{_LETTER}{_PART}$",
    "hostname": rf"^(?:{_LABEL}\.){{0,5}}{_LETTER}{_PART}$",
    "ipv4": f"^{_V4}$",
    "ipv6": f"^(?:::{_after_gap(7)}|{_GROUP}{_after_groups(1)})$",
    "uuid": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
}
