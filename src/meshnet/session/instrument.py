"""What is changed in a template's syntax tree, so that its running can be metered."""

from __future__ import annotations

from typing import Final

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

LOOP: Final = "every item"
TEXT: Final = "made text"
MADE: Final = "new value"
USED: Final = "used value"
"""Filters put in by :class:`Instrumented`; no template can spell a name with a blank."""


class Instrumented(NodeTransformer):
    """Makes a template's tree report what an environment can't intercept by itself."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Report every item of a loop."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, LOOP)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Report what is compared, one by one."""
        self.generic_visit(node)
        node.expr = _filtered(node.expr, USED)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, USED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Report what ``~`` joins."""
        self.generic_visit(node)
        node.nodes = [_filtered(part, TEXT) for part in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Report the copy that a slice makes."""
        self.generic_visit(node)
        return _filtered(node, MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """Report a new list."""
        self.generic_visit(node)
        return _filtered(node, MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """Report a new mapping, and its keys, which are hashed."""
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered(pair.key, USED)
        return _filtered(node, MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """Report a new tuple, unless it is a target of an assignment."""
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" else node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class GenerationTag(Extension):
    """``{% generation %}``, by which templates mark the model's own turns; it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
