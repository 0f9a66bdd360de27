"""JSON schemas of all kinds, for what must follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshnet.session.schema_grammar.convert import SchemaRules
from meshnet.session.schema_grammar.gbnf import GrammarWriter


def json_object() -> str:
    """The grammar of any JSON object."""
    writer = GrammarWriter()
    return writer.text(writer.common("object"))


def schema_grammar(schema: object, field: str) -> str:
    """The grammar of what ``schema``, in the parameter ``field``, allows."""
    writer = GrammarWriter()
    return writer.text(SchemaRules(writer, schema, field).value())


_POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
_TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def _closed(**properties: object) -> dict[str, Any]:
    """An object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: Mapping[str, Any] = {
    "any value": {},
    "true": True,
    "any object": {"type": "object"},
    "any array": {"type": "array", "maxItems": 4},
    "text": {"type": "string"},
    "short text": {"type": "string", "maxLength": 7},
    "long text": {"type": "string", "minLength": 20},
    "text of one length": {"type": "string", "minLength": 12, "maxLength": 12},
    "text with a large bound": {"type": "string", "minLength": 3, "maxLength": 5000},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "several types": {"type": ["string", "integer", "null"]},
    "integer within bounds": {"type": "integer", "minimum": -17, "maximum": 1234},
    "negative integer": {"type": "integer", "exclusiveMaximum": 0},
    "integer from a bound on": {"type": "integer", "minimum": 98},
    "integer of two": {"type": "integer", "exclusiveMinimum": 99, "maximum": 101},
    "probability": {"type": "number", "minimum": 0, "maximum": 1},
    "number between integers": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.75},
    "number around zero": {"type": "number", "minimum": -1.5, "maximum": 1.5},
    "positive number": {"type": "number", "exclusiveMinimum": 0},
    "enum of texts": {"type": "string", "enum": ["red", "green", 'b"l\\ue', "grün", "\n"]},
    "enum of everything": {"enum": [1, "1", None, True, [1, 2], {"a": "b"}, 1.5]},
    "enum with a type": {"type": "integer", "enum": [1, "one", 2, 2.5, 3.0]},
    "constant": {"const": {"kind": "exact", "list": [1, [2]]}},
    "object": _POINT,
    "object with optional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"enum": ["c"]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "object with nothing required": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "object that is empty": {"type": "object", "properties": {}, "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "map beside properties": {
        "type": "object",
        "properties": {"ab": {"type": "boolean"}, "abc": {"type": "boolean"}},
        "required": ["ab"],
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "property without a schema": {"type": "object", "required": ["here"], "maxLength": 3},
    "odd names": _closed(**{'q"uote': {"type": "null"}, "sl/a~sh": {"type": "null"}, "ö": True}),
    "nested": _closed(a=_closed(b=_closed(c={"type": "array", "items": _POINT, "maxItems": 2}))),
    "array with bounds": {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 4,
    },
    "array of one length": {
        "type": "array",
        "items": {"enum": ["x"]},
        "minItems": 3,
        "maxItems": 3,
    },
    "array from a bound on": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    "array that is empty": {"type": "array", "maxItems": 0},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 2}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "tuple with more": {
        "type": "array",
        "prefixItems": [{"const": "head"}],
        "items": {"type": "boolean"},
        "minItems": 2,
        "maxItems": 4,
    },
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "maxItems": 2,
    },
    "any of": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}, _POINT]},
    "any of beside properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "optional by any of": _closed(
        a={"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}
    ),
    "one of by type": {
        "oneOf": [{"type": "integer"}, {"type": "null"}, {"type": "array", "maxItems": 1}]
    },
    "one of by a constant": {
        "oneOf": [
            _closed(kind={"const": "circle"}, r={"type": "integer"}),
            _closed(kind={"const": "square"}, side={"type": "integer"}),
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}, "a": {"minimum": 3}}, "required": ["b"]},
        ]
    },
    "bounds from all of": {
        "allOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 9}]
    },
    "reference": {
        "$defs": {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}},
        **_closed(first={"$ref": "#/$defs/id"}, second={"$ref": "#/$defs/id"}),
    },
    "reference with a default": {
        "definitions": {"n": {"type": "integer"}},
        **_closed(n={"$ref": "#/definitions/n", "default": 3, "maximum": 5}),
    },
    "recursion": {"$defs": {"node": _TREE}, "$ref": "#/$defs/node"},
    "recursion through the root": {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": r"^\(?\d{3}\)?[- ]\d{4}$"},
    "pattern with choices": {"type": "string", "pattern": "^(?:cat|dog|bird)s?(?:, (?:cat|dog))*$"},
    "pattern in the middle": {"type": "string", "pattern": r"\]}"},
    "pattern at one end": {"type": "string", "pattern": "^ab+|}$"},
    "pattern with quotes": {"type": "string", "pattern": r'^"[^"\\]{1,4}"\\\t$'},
    "pattern of any character": {"type": "string", "pattern": "^.{2,5}$"},
    "pattern of what isn't": {"type": "string", "pattern": r"^[^a-z\d]{1,6}\W\S\D$"},
    "pattern of words": {"type": "string", "pattern": r"^\w+(\s\w+){0,2}?$"},
    "pattern beyond ASCII": {"type": "string", "pattern": "^[\\u03b1-\\u03c9é]{3}$"},
    "date": {"type": "string", "format": "date"},
    "date and time": {"type": "string", "format": "date-time"},
    "time": {"type": "string", "format": "time"},
    "duration": {"type": "string", "format": "duration"},
    "e-mail": {"type": "string", "format": "email"},
    "addresses": _closed(
        v4={"type": "string", "format": "ipv4"},
        v6={"type": "string", "format": "ipv6"},
        host={"type": "string", "format": "hostname"},
    ),
    "uuid": {"type": "string", "format": "uuid"},
    "from pydantic": {
        "$defs": {
            "Step": {
                "properties": {
                    "explanation": {"title": "Explanation", "type": "string"},
                    "output": {"title": "Output", "type": "string"},
                },
                "required": ["explanation", "output"],
                "title": "Step",
                "type": "object",
                "additionalProperties": False,
            }
        },
        "properties": {
            "steps": {"items": {"$ref": "#/$defs/Step"}, "title": "Steps", "type": "array"},
            "answer": {"title": "Answer", "type": "string"},
        },
        "required": ["steps", "answer"],
        "title": "Reasoning",
        "type": "object",
        "additionalProperties": False,
    },
}
"""By what is special about them."""

REFUSED: Mapping[str, tuple[Any, str, str]] = {
    "not": (
        {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
        "#/properties/a",
        "not",
    ),
    "if": ({"items": {"if": {}, "then": {}}}, "#/items", "if"),
    "patternProperties": ({"patternProperties": {"^a": True}}, "#", "patternProperties"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "#", "uniqueItems"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "#", "multipleOf"),
    "minProperties": ({"type": "object", "minProperties": 1}, "#", "minProperties"),
    "contains": ({"type": "array", "contains": {}}, "#", "contains"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "#", "dependentRequired"),
    "propertyNames": ({"propertyNames": {"maxLength": 2}}, "#", "propertyNames"),
    "nullable": ({"type": "string", "nullable": True}, "#", "nullable"),
    "an unknown keyword": ({"type": "string", "maxlength": 3}, "#", "maxlength"),
    "a remote reference": ({"$ref": "https://example.com/s"}, "#", r"\$ref"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "#", r"\$ref"),
    "a reference to itself": ({"$ref": "#"}, "#", r"\$ref"),
    "all of itself": ({"allOf": [{"$ref": "#"}]}, "#", "leads to itself"),
    "an unknown format": ({"type": "string", "format": "uri"}, "#", "format"),
    "an unknown type": ({"type": "text"}, "#", "type"),
    "a pattern with a length": (
        {"type": "string", "pattern": "a", "maxLength": 3},
        "#",
        "maxLength",
    ),
    "a lookahead": ({"type": "string", "pattern": "^(?=a)b$"}, "#", "pattern"),
    "a backreference": ({"type": "string", "pattern": r"^(a)\1$"}, "#", "pattern"),
    "a word boundary": ({"type": "string", "pattern": r"\bword\b"}, "#", "pattern"),
    "an anchor inside": ({"type": "string", "pattern": "^(a$|b)"}, "#", "pattern"),
    "an open group": ({"type": "string", "pattern": "^(a"}, "#", "pattern"),
    "an open class": ({"type": "string", "pattern": "^[a"}, "#", "pattern"),
    "a large repetition": ({"type": "string", "pattern": "^a{100000}$"}, "#", "pattern"),
    "a large bound": ({"type": "string", "maxLength": 100000}, "#", "maxLength"),
    "crossed lengths": ({"type": "string", "minLength": 3, "maxLength": 2}, "#", "maxLength"),
    "crossed bounds": ({"type": "integer", "minimum": 3, "maximum": 2}, "#", "bounds"),
    "a bound of no number": ({"type": "integer", "minimum": "3"}, "#", "minimum"),
    "a tuple by items": ({"type": "array", "items": [{}]}, "#", "items"),
    "one of that overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#", "oneOf"),
    "one of that isn't told apart": ({"oneOf": [_POINT, _TREE]}, "#", "oneOf"),
    "constants with a bound": ({"enum": [1, 2], "minimum": 2}, "#", "minimum"),
    "constants of another type": ({"enum": ["a"], "type": "null"}, "#", "constant"),
    "nothing": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "#/properties/a",
        "nothing",
    ),
    "a required name that is closed out": (
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        "#/properties/a",
        "nothing",
    ),
    "properties of two closed ones": ({"allOf": [_POINT, _TREE]}, "#", "additionalProperties"),
    "depth": ([{}], "#", "object"),
}
"""A schema, the place and the word that the refusal names."""
