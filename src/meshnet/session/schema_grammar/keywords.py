"""Which parts of JSON Schema (draft 2020-12) are offered, and how several schemas become one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final

from meshnet.domain.errors import InvalidArgumentError

Schema = Mapping[str, Any]

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_DESCRIBING: Final = ("title", "description", "default", "examples", "deprecated")
_NAMING: Final = ("$schema", "$id", "$comment", "$defs", "definitions")
ANNOTATIONS: Final = frozenset((*_DESCRIBING, *_NAMING, "readOnly", "writeOnly"))
"""They allow and forbid nothing."""
OF_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
}
_ELSE: Final = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
OFFERED: Final = ANNOTATIONS.union(_ELSE, *OF_TYPE.values())
_WITHOUT_EFFECT: Final[Mapping[str, object]] = {
    "uniqueItems": False,
    "minProperties": 0,
    "minContains": 0,
    "nullable": False,
    "unevaluatedProperties": True,
    "unevaluatedItems": True,
    "propertyNames": True,
    "patternProperties": {},
    "dependentRequired": {},
    "dependentSchemas": {},
    "not": False,
}
_CLOSING: Final[Mapping[str, frozenset[str]]] = {
    "additionalProperties": frozenset(("properties", "additionalProperties")),
    "items": frozenset(("items", "prefixItems")),
    "prefixItems": frozenset(("items", "prefixItems")),
}
"""What these mean depends on what stands beside them in the same schema."""
_LARGER: Final = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems"))
_SMALLER: Final = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems"))


MAX_STEPS: Final = 20_000
"""Of the work that a schema makes: a small one may refer to itself in very many ways."""
MAX_NESTING: Final = 320
"""Values within one another."""
_PER_STEP: Final = 32


class Steps:
    """The work on the schema in the parameter ``field``, counted."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._taken = 0

    def take(self, count: int, pointer: str) -> None:
        """Count some steps; raises :class:`InvalidArgumentError` beyond ``MAX_STEPS``."""
        self._taken += count
        if self._taken > MAX_STEPS:
            raise refusal(
                self.field,
                pointer,
                f"the schema takes more than {MAX_STEPS} steps; make it simpler",
            )

    def take_text(self, text: str, pointer: str) -> None:
        """Count the steps that a text takes."""
        self.take(len(text) // _PER_STEP, pointer)


def _texts(value: object) -> str:
    good = isinstance(value, list) and all(isinstance(it, str) for it in value)
    return "" if good else "a list of names"


def _form(kinds: type | UnionType, name: str) -> Callable[[object], str]:
    return lambda value: "" if isinstance(value, kinds) else name


def _number(value: object) -> str:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if good else "a number"


_FORMS: Final[Mapping[str, Callable[[object], str]]] = {
    "$ref": _form(str, "a text"),
    "pattern": _form(str, "a text"),
    "format": _form(str, "a text"),
    "type": _form(str | list, "a type or a list of them"),
    "enum": _form(list, "a list"),
    "prefixItems": _form(list, "a list of schemas"),
    "items": _form(dict | bool, "one schema"),
    "additionalProperties": _form(dict | bool, "a schema"),
    "properties": _form(dict, "an object"),
    "required": _texts,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _form(list, "a list of schemas")),
    **dict.fromkeys(sorted(_LARGER | _SMALLER), _number),
}
"""What is wrong with a keyword's value, or nothing."""


def refusal(field: str, pointer: str, problem: str) -> InvalidArgumentError:
    """The error about the place ``pointer`` of the schema in the parameter ``field``."""
    return InvalidArgumentError(field, f"at {pointer}: {problem}", pointer=pointer)


def require_plain(schema: object, field: str) -> None:
    """Raise :class:`InvalidArgumentError` for JSON that is nested too deep or holds no number."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise InvalidArgumentError(field, f"it nests more than {MAX_NESTING} values")
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise InvalidArgumentError(field, "it holds a number that JSON doesn't have")
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]


def require_offered(schema: Schema, field: str, pointer: str) -> None:
    """Raise :class:`InvalidArgumentError` for a keyword that isn't offered, or of a wrong type."""
    for key, value in schema.items():
        if key in _FORMS:
            problem = _FORMS[key](value)
            if problem:
                raise refusal(field, pointer, f"{key} must be {problem}")
        if key in OFFERED or key.startswith("x-"):
            continue
        neutral = _WITHOUT_EFFECT.get(key)
        if key in _WITHOUT_EFFECT and type(value) is type(neutral) and value == neutral:
            continue
        raise refusal(field, pointer, f"the keyword {json.dumps(key)} isn't offered")


def weight(schema: Schema) -> int:
    """How many steps it takes to look at a schema once, without what is within it."""
    held = sum(len(value) for value in schema.values() if isinstance(value, dict | list))
    return 1 + (len(schema) + held) // _PER_STEP


def own(schema: Schema, *without: str) -> dict[str, Any]:
    """What a schema says itself: no annotations, and not the keywords ``without``."""
    return {
        key: value
        for key, value in schema.items()
        if key in OFFERED and key not in ANNOTATIONS and key not in without
    }


def types_of(schema: Schema, field: str, pointer: str) -> tuple[str, ...]:
    """The types it allows: those stated, else those that its keywords are about, else all."""
    stated = schema.get("type")
    if stated is None:
        found = tuple(kind for kind, keys in OF_TYPE.items() if not keys.isdisjoint(schema))
        return found or TYPES
    kinds = [stated] if isinstance(stated, str) else stated
    if not isinstance(kinds, list) or not kinds or any(kind not in TYPES for kind in kinds):
        raise refusal(field, pointer, f"type must be one or some of {', '.join(TYPES)}")
    return tuple(dict.fromkeys(kinds))


def has_type(value: object, kinds: Sequence[str]) -> bool:
    """Whether a JSON value has one of the types."""
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, int | float):
        whole = "integer" in kinds and value == int(value)
        return whole or "number" in kinds
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in kinds


def canonical(value: object) -> str:
    """A text that equal JSON values share, and no others."""
    return json.dumps(value, sort_keys=True)


def merged(parts: Sequence[Schema], steps: Steps, pointer: str) -> Schema:
    """One schema that allows what all ``parts`` allow, none of which has a ``$ref``.

    Raises :class:`InvalidArgumentError` where that can't be said with the keywords offered.
    """
    whole: dict[str, Any] = {}
    field = steps.field
    for part in parts:
        added = own(part)
        steps.take(weight(added), pointer)
        for closing, open_to in _CLOSING.items():
            for one, other in ((whole, added), (added, whole)):
                if one.get(closing, True) is not True and not open_to.isdisjoint(other):
                    raise refusal(
                        field, pointer, f"{closing} in one of several schemas isn't offered"
                    )
        for key, value in added.items():
            whole[key] = (
                value if key not in whole else _both(key, whole[key], value, steps, pointer)
            )
    return whole


def _both(key: str, one: Any, other: Any, steps: Steps, pointer: str) -> Any:
    texts = canonical(one), canonical(other)
    steps.take(sum(map(len, texts)) // _PER_STEP, pointer)
    if texts[0] == texts[1]:
        return one
    if key == "properties" and isinstance(one, dict) and isinstance(other, dict):
        shared = {name: {"allOf": [one[name], other[name]]} for name in one if name in other}
        return {**one, **other, **shared}
    if key == "required" and isinstance(one, list) and isinstance(other, list):
        return list(dict.fromkeys([*one, *other]))
    if key == "enum" and isinstance(one, list) and isinstance(other, list):
        wanted = set(map(canonical, other))
        return [value for value in one if canonical(value) in wanted]
    if key == "type":
        kinds = _common_types(one, other)
        if kinds:
            return kinds
    if key in _LARGER | _SMALLER and all(isinstance(it, int | float) for it in (one, other)):
        return max(one, other) if key in _LARGER else min(one, other)
    raise refusal(
        steps.field, pointer, f"{key} in several schemas that all must hold isn't offered"
    )


def _common_types(one: Any, other: Any) -> list[str]:
    first, second = ([it] if isinstance(it, str) else it for it in (one, other))
    if not isinstance(first, list) or not isinstance(second, list):
        return []
    found = [kind for kind in first if kind in second]
    for some, more in ((first, second), (second, first)):
        if "integer" in some and "number" in more and "integer" not in found:
            found.append("integer")
    return found
