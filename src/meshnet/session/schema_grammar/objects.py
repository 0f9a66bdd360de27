"""Objects of a schema as rules of a grammar."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from meshnet.session.schema_grammar.gbnf import EMPTY, RAW, literal, without
from meshnet.session.schema_grammar.keywords import Schema, own

if TYPE_CHECKING:
    from meshnet.session.schema_grammar.convert import SchemaRules


def body(rules: SchemaRules, schema: Schema, pointer: str) -> str:
    """The body of an object: the properties in their order, then others."""
    if {"properties", "required", "additionalProperties"}.isdisjoint(own(schema)):
        return rules.writer.common("object")
    properties, required = _properties(schema)
    other = schema.get("additionalProperties", "properties" not in schema and not properties)
    writer, ws = rules.writer, rules.writer.common("ws")
    extra = None
    if other is not False:
        value = rules.of(other, f"{pointer}/additionalProperties")
        key = _other_key(rules, list(properties))
        extra = writer.rule(f'{key} ":" ws {value}')
    # From the last to the first: what may follow nothing, and what may follow another member.
    first = f'( {extra} ( "," ws {extra} )* )?' if extra else ""
    rest = f'( "," ws {extra} )*' if extra else ""
    for name in reversed(properties):
        place = f"{pointer}/properties/{_escaped(name)}"
        value = properties[name]
        if value is False and name not in required:
            continue
        key = literal(json.dumps(name, ensure_ascii=False))
        member = writer.rule(f'{key} ":" ws {rules.of(value, place)}')
        if name in required:
            first, rest = f"{member} {rest}", writer.rule(f'"," ws {member} {rest}')
        else:
            alone = f"{member} {rest} | {first or EMPTY}"
            after = f'"," ws {member} {rest} | {rest or EMPTY}'
            first, rest = writer.rule(alone), writer.rule(after)
    inside = f"{first.strip()} {ws}" if first else ""
    return writer.rule(f'"{{" {ws} {inside} "}}"')


def _properties(schema: Schema) -> tuple[dict[str, Any], frozenset[str]]:
    """All properties that have a schema of their own or must be there, and those that must."""
    stated, required = schema.get("properties", {}), schema.get("required", [])
    other = schema.get("additionalProperties", True)
    return {**stated, **{it: other for it in required if it not in stated}}, frozenset(required)


def _other_key(rules: SchemaRules, names: list[str]) -> str:
    """A key that is none of the names; without escapes, which could spell one of them."""
    if not names:
        return rules.writer.common("string")
    rules.steps.take(sum(map(len, names)), "#")
    char = rules.writer.rule("[\\x20-\\x21\\x23-\\x5B\\x5D-\\uD7FF\\uE000-\\U0010FFFF]")
    return f'"\\"" {without(rules.writer, RAW, _unescaped(names), f"{char}*")} "\\""'


def _unescaped(names: list[str]) -> list[str]:
    """Those of the names that JSON writes without escapes."""
    return [name for name in names if json.dumps(name, ensure_ascii=False) == f'"{name}"']


def _escaped(name: str) -> str:
    """A step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
