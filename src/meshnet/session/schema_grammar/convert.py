"""From a JSON schema to rules of a grammar.

The grammar allows fewer texts than the schema: members come in the order of ``properties``, where
there are ``properties`` others come only if ``additionalProperties`` says so by itself, and numbers
have 16 digits at most. What can't be written so is refused with its place and its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

from meshnet.domain.sampling import MAX_GRAMMAR_BYTES
from meshnet.session.schema_grammar import arrays, objects
from meshnet.session.schema_grammar.formats import FORMATS
from meshnet.session.schema_grammar.gbnf import MAX_COUNT, GrammarWriter, either, literal
from meshnet.session.schema_grammar.keywords import (
    TYPES,
    Schema,
    Steps,
    canonical,
    has_type,
    merged,
    own,
    refusal,
    require_offered,
    require_plain,
    types_of,
    weight,
)
from meshnet.session.schema_grammar.numbers import Bounds, integers, numbers
from meshnet.session.schema_grammar.patterns import PatternError, pattern_body

MAX_DEPTH: Final = 64
"""Schemas within one another."""
MAX_BOUND: Final = 10**30
"""Of a number's bounds; no number that is written goes nearly as far."""
_INDEX: Final = re.compile("[0-9]{1,6}")


class SchemaRules:
    """The rules of one schema; ``field`` is the parameter that it came in.

    Raises :class:`InvalidArgumentError` naming the field, the place in the schema as a JSON pointer
    (RFC 6901, as a URI fragment) and the keyword that isn't offered or isn't valid.
    """

    def __init__(self, writer: GrammarWriter, schema: object, field: str) -> None:
        self.writer = writer
        self.field = field
        self._schema = schema
        self._named: dict[str, str] = {}
        """Rules of what is referred to, by pointer."""
        self._resolved: dict[str, Schema | None] = {}
        """What is referred to, resolved, by pointer; None while that is being found."""
        self._patterns: dict[str, str] = {}
        """Rules of texts, by their expression."""
        self.steps = Steps(field)
        self._depth = 0

    def value(self) -> str:
        """The body of a value of the whole schema; raises as :func:`schema_grammar`."""
        require_plain(self._schema, self.field)
        return self.of(self._schema, "#")

    def of(self, schema: object, pointer: str) -> str:
        """The body of a value of ``schema``, which is at ``pointer``."""
        self.steps.take(1, pointer)
        if schema is True or schema == {}:
            return self.writer.common("value")
        if not isinstance(schema, dict):
            problem = (
                "it allows nothing" if schema is False else "it must be an object or a boolean"
            )
            raise refusal(self.field, pointer, problem)
        self._deeper(pointer)
        if self.writer.size > MAX_GRAMMAR_BYTES:
            raise refusal(
                self.field, pointer, f"its grammar has more than {MAX_GRAMMAR_BYTES} bytes"
            )
        self.steps.take(weight(schema), pointer)
        require_offered(schema, self.field, pointer)
        body = self._combined(schema, pointer)
        self._depth -= 1
        return body

    def _deeper(self, pointer: str) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise refusal(self.field, pointer, f"it nests more than {MAX_DEPTH} schemas")

    def _combined(self, schema: Schema, pointer: str) -> str:
        if "$ref" in schema:
            return self._referred(schema, pointer)
        if "allOf" in schema:
            parts = self._list(schema, "allOf", pointer)
            all_of = [self.resolved(part, f"{pointer}/allOf/{i}") for i, part in enumerate(parts)]
            together = merged([own(schema, "allOf"), *all_of], self.steps, pointer)
            return self.of(together, pointer)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._alternatives(schema, key, pointer)
        if "enum" in schema or "const" in schema:
            return self._listed(schema, pointer)
        kinds = types_of(schema, self.field, pointer)
        if "number" in kinds:
            kinds = tuple(kind for kind in kinds if kind != "integer")
        if kinds == tuple(kind for kind in TYPES if kind != "integer") and not own(schema, "type"):
            return self.writer.common("value")
        return either([self._typed(schema, kind, pointer) for kind in kinds])

    def _referred(self, schema: Schema, pointer: str) -> str:
        beside = own(schema, "$ref")
        target = schema["$ref"]
        if beside:
            parts = [beside, self._resolved_at(target, pointer)]
            return self.of(merged(parts, self.steps, pointer), pointer)
        if target not in self._named:
            found = self._target(target, pointer)
            name = self._named[target] = self.writer.reserve()
            body = self.of(found, target)
            if body == name:
                raise refusal(self.field, pointer, f"$ref {target!r} leads to itself alone")
            self.writer.define(name, body)
        return self._named[target]

    def resolved(self, schema: object, pointer: str) -> Schema:
        """The schema without a ``$ref`` and without ``allOf`` at its top."""
        if not isinstance(schema, dict):
            raise refusal(self.field, pointer, "it must be an object")
        self.steps.take(weight(schema), pointer)
        require_offered(schema, self.field, pointer)
        if "$ref" not in schema and "allOf" not in schema:
            return own(schema)
        self._deeper(pointer)
        parts: list[Schema] = [own(schema, "$ref", "allOf")]
        if "$ref" in schema:
            parts.append(self._resolved_at(schema["$ref"], pointer))
        if "allOf" in schema:
            found = self._list(schema, "allOf", pointer)
            parts += [self.resolved(it, f"{pointer}/allOf/{i}") for i, it in enumerate(found)]
        self._depth -= 1
        return merged([part for part in parts if part], self.steps, pointer)

    def _resolved_at(self, target: str, pointer: str) -> Schema:
        """What ``target`` refers to, resolved once."""
        if target not in self._resolved:
            self._resolved[target] = None
            self._resolved[target] = self.resolved(self._target(target, pointer), target)
        found = self._resolved[target]
        if found is None:
            raise refusal(self.field, pointer, f"$ref {target!r} leads to itself alone")
        return found

    def _target(self, reference: str, pointer: str) -> object:
        if not (reference + "/").startswith("#/"):
            raise refusal(
                self.field, pointer, f"$ref {json.dumps(reference)} must lead to a place in here"
            )
        found: Any = self._schema
        self.steps.take_text(reference, pointer)
        for step in reference.split("/")[1:]:
            self.steps.take(1, pointer)
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _INDEX.fullmatch(key) and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise refusal(self.field, pointer, f"there is nothing at $ref {reference!r}")
        return found

    def _alternatives(self, schema: Schema, key: str, pointer: str) -> str:
        parts = self._list(schema, key, pointer)
        beside = own(schema, key)
        places = [f"{pointer}/{key}/{i}" for i in range(len(parts))]
        whole: list[object] = list(parts)
        if beside:
            found = [self.resolved(it, place) for it, place in zip(parts, places, strict=True)]
            whole = [merged([beside, part], self.steps, pointer) for part in found]
        if key == "oneOf":
            self._require_disjoint(parts, places, pointer)
        bodies = [self.of(it, place) for it, place in zip(whole, places, strict=True)]
        return self.writer.rule(" | ".join(dict.fromkeys(bodies)))

    def _require_disjoint(
        self, parts: Sequence[object], places: Sequence[str], pointer: str
    ) -> None:
        """A value must fit one alternative of ``oneOf`` and no other; no grammar counts them."""
        found = [
            self._told(self.resolved(it, place), place)
            for it, place in zip(parts, places, strict=True)
        ]
        # What tells all of them apart at once needs no look at each pair.
        shared = frozenset[str]().union(*found).intersection(*found)
        if any(_apart([it[key] for it in found]) for key in sorted(shared)):
            return
        for i, one in enumerate(found):
            for other in found[:i]:
                self.steps.take(1, pointer)
                if all(one[key] & other[key] for key in one.keys() & other.keys()):
                    raise refusal(
                        self.field,
                        pointer,
                        "oneOf is offered where the types, or constants of a required property, "
                        "tell the alternatives apart; use anyOf",
                    )

    def _told(self, schema: Schema, pointer: str) -> dict[str, frozenset[str]]:
        """What tells a value: its types, itself and constants of properties that it must have."""
        told: dict[str, frozenset[str]] = {}
        values = self._constants(schema, pointer)
        if values is not None:
            told["value"] = values
        if "type" not in schema:
            return told
        kinds = types_of(schema, self.field, pointer)
        told["type"] = frozenset(_with_integers(kinds))
        if kinds != ("object",):
            return told
        for name in schema.get("required", ()):
            stated = schema.get("properties", {}).get(name, {})
            # A place of its own: a boolean schema names no constant.
            inner = {} if isinstance(stated, bool) else self.resolved(stated, pointer)
            constants = self._constants(inner, pointer)
            if constants is not None:
                told[f"property {name}"] = constants
        return told

    def _constants(self, schema: Schema, pointer: str) -> frozenset[str] | None:
        """The only values that the schema allows, as texts; None if it doesn't list them."""
        if "const" in schema:
            listed = [schema["const"]]
        elif "enum" in schema:
            listed = schema["enum"]
        else:
            return None
        texts = frozenset(map(canonical, listed))
        self.steps.take_text("".join(texts), pointer)
        return texts

    def _listed(self, schema: Schema, pointer: str) -> str:
        values = self._list(schema, "enum", pointer) if "enum" in schema else [schema["const"]]
        if "enum" in schema and "const" in schema:
            values = [it for it in values if canonical(it) == canonical(schema["const"])]
        beside = own(schema, "enum", "const", "type")
        if beside:
            raise refusal(
                self.field, pointer, f"{min(beside)} beside a list of constants isn't offered"
            )
        kinds = types_of(schema, self.field, pointer)
        texts = [json.dumps(it, ensure_ascii=False) for it in values if has_type(it, kinds)]
        self.steps.take_text("".join(texts), pointer)
        if not texts:
            raise refusal(self.field, pointer, "no constant is left that all keywords allow")
        return self.writer.rule(" | ".join(map(literal, dict.fromkeys(texts))))

    def _typed(self, schema: Schema, kind: str, pointer: str) -> str:
        if kind == "object":
            return objects.body(self, schema, pointer)
        if kind == "array":
            return arrays.body(self, schema, pointer)
        if kind == "string":
            return self._string(schema, pointer)
        if kind in ("integer", "number"):
            return self._number(schema, kind, pointer)
        return '"null"' if kind == "null" else '( "true" | "false" )'

    def _string(self, schema: Schema, pointer: str) -> str:
        given = [key for key in ("pattern", "format") if key in schema]
        low, high = (
            self.count(schema, "minLength", pointer),
            self.count(schema, "maxLength", pointer),
        )
        if not given:
            if low is None and high is None:
                return self.writer.common("string")
            self.require_order(low, high, "Length", pointer)
            inside = self.writer.repeated(self.writer.common("char"), low or 0, high)
            return self.writer.rule(f'"\\"" {inside} "\\""')
        beside = [*given[1:], *(key for key in ("minLength", "maxLength") if key in schema)]
        if beside:
            raise refusal(self.field, pointer, f"{beside[0]} beside {given[0]} isn't offered")
        stated = schema[given[0]]
        pattern = FORMATS.get(stated) if given[0] == "format" else stated
        if pattern is None:
            raise refusal(self.field, pointer, f"the {given[0]} {json.dumps(stated)} isn't offered")
        if pattern not in self._patterns:
            self.steps.take(len(pattern) // 4, pointer)
            try:
                inside = pattern_body(self.writer, pattern)
            except PatternError as error:
                raise refusal(self.field, pointer, f"pattern isn't offered: {error}") from None
            self._patterns[pattern] = self.writer.rule(f'"\\"" {inside} "\\""')
        return self._patterns[pattern]

    def _number(self, schema: Schema, kind: str, pointer: str) -> str:
        stated = {key: self._bound(schema, key, pointer) for key in schema if key in _BOUNDS}
        if not stated:
            return self.writer.common(kind)
        low = _strictest(stated, "minimum", "exclusiveMinimum", max)
        high = _strictest(stated, "maximum", "exclusiveMaximum", min)
        bounds = Bounds(low[0], high[0], low[1], high[1])
        try:
            body = integers(bounds) if kind == "integer" else numbers(bounds)
        except ValueError as error:
            raise refusal(self.field, pointer, f"a bound with {error} isn't offered") from None
        if body is None:
            raise refusal(self.field, pointer, "no number of up to 15 digits is within the bounds")
        self.steps.take_text(body, pointer)
        return self.writer.rule(body)

    def _bound(self, schema: Schema, key: str, pointer: str) -> Decimal:
        value = schema[key]
        if abs(value) > MAX_BOUND:
            raise refusal(self.field, pointer, f"{key} beyond {MAX_BOUND} isn't offered")
        return Decimal(str(value))

    def count(self, schema: Schema, key: str, pointer: str) -> int | None:
        """A number of characters or items; None if it isn't stated."""
        value = schema.get(key)
        if value is None:
            return None
        if value != int(value) or value < 0:
            raise refusal(self.field, pointer, f"{key} must be a whole number, and not negative")
        if value > MAX_COUNT:
            raise refusal(self.field, pointer, f"{key} above {MAX_COUNT} isn't offered")
        return int(value)

    def require_order(self, low: int | None, high: int | None, of: str, pointer: str) -> None:
        """Raise if a maximum is less than its minimum."""
        if high is not None and high < (low or 0):
            raise refusal(self.field, pointer, f"max{of} is less than min{of}")

    def _list(self, schema: Schema, key: str, pointer: str) -> list[Any]:
        value = schema[key]
        if not isinstance(value, list) or not value:
            raise refusal(self.field, pointer, f"{key} must be a list that isn't empty")
        return value


def _with_integers(kinds: Sequence[str]) -> set[str]:
    return {*kinds, "integer"} if "number" in kinds else set(kinds)


_BOUNDS: Final = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))


def _strictest(
    stated: Mapping[str, Decimal], closed: str, opened: str, choose: Any
) -> tuple[Decimal | None, bool]:
    """The bound that leaves less, and whether it is outside itself."""
    found = [(stated[key], key == opened) for key in (closed, opened) if key in stated]
    if not found:
        return None, False
    bound = choose(value for value, _ in found)
    return bound, any(is_open for value, is_open in found if value == bound)


def _apart(sets: Sequence[frozenset[str]]) -> bool:
    """Whether nothing is in two of them."""
    return sum(map(len, sets)) == len(frozenset[str]().union(*sets))
