"""Arrays of a schema as rules of a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshnet.session.schema_grammar.keywords import Schema, refusal

if TYPE_CHECKING:
    from meshnet.session.schema_grammar.convert import SchemaRules


def body(rules: SchemaRules, schema: Schema, pointer: str) -> str:
    """The body of an array: all of the first items that have schemas of their own, then others."""
    writer, ws = rules.writer, rules.writer.common("ws")
    first, items = schema.get("prefixItems", []), schema.get("items", True)
    low, high = rules.count(schema, "minItems", pointer), rules.count(schema, "maxItems", pointer)
    rules.require_order(low, high, "Items", pointer)
    if high is not None:
        first = first[:high]
    bodies = [rules.of(it, f"{pointer}/prefixItems/{i}") for i, it in enumerate(first)]
    least = max((low or 0) - len(bodies), 0)
    most = None if high is None else high - len(bodies)
    if items is False:
        if least:
            raise refusal(rules.field, pointer, "items allows fewer than minItems")
        most = 0
    more = ""
    if most != 0:
        item = writer.rule(rules.of(items, f"{pointer}/items"))
        following = writer.rule(f'"," {ws} {item}')
        if bodies:
            more = writer.repeated(following, least, most)
        else:
            after = writer.repeated(
                following, max(least - 1, 0), None if most is None else most - 1
            )
            more = f"{item} {after}" if least else f"( {item} {after} )?"
    inside = f' "," {ws} '.join(bodies)
    return writer.rule(f'"[" {ws} {inside} {more} {ws} "]"')
