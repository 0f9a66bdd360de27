"""A jinja2 sandbox in which a template's time and memory are bounded.

jinja2's own sandbox keeps a template from reaching Python's internals, but not from filling the
memory or running for ever: ``'x' * 10**10`` and nested loops are ordinary expressions. A thread
that renders can't be stopped from outside either, so everything that takes time or makes a value
reports to a :class:`Meter` here, before it does so where the result can be larger than its parts:

- loops, and filters that yield, report every item;
- ``+ * ** % ~``, literals, slices, filters, method calls, output and the joining of blocks report
  what they make; comparisons and tests report that they happen;
- a value that is turned into text, compared or hashed is measured as the tree it stands for, since
  lists that hold the same list many times are small in memory and huge in print;
- filters and methods are an allow-list. What is missing from jinja2's filters either makes text or
  lists of any size from a number, or isn't used by chat templates.

What these leave unbounded is the time of a single operation on values within their bounds, which
is less than a second, and of the compilation, which the limit of the source bounds to a few.
"""

from __future__ import annotations

import functools
import json
import re
import string
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jinja2 import nodes, pass_context, pass_eval_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from markupsafe import Markup

from meshnet.domain.errors import TemplateError
from meshnet.session.instrument import (
    LOOP,
    MADE,
    TEXT,
    USED,
    GenerationTag,
    Instrumented,
)
from meshnet.session.meter import Meter, RenderLimits

_ITEM_BYTES: Final = 16
_STRING_BYTES: Final = 64
_MAX_BITS: Final = 4096
_MAX_WIDTH: Final = 64
_SCALARS: Final = (str, int, float, types.NoneType)
_LARGE_NUMBER: Final = re.compile(r"\d{4}")
_PERCENT_WIDTH: Final = re.compile(r"%[^A-Za-z%]*(?:\*|\d{4})")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS: Final = _names(
    "abs attr capitalize count d default dictsort e escape first float int items last length lower "
    "map max min reject rejectattr reverse safe select selectattr sort string title trim unique "
    "upper"
)
_SHALLOW_FILTERS: Final = _names(
    "count d default first items last length list map reject rejectattr select selectattr"
)
_SHALLOW_TESTS: Final = _names(
    "boolean callable defined false float integer iterable mapping none number sequence string "
    "true undefined"
)
"""Filters and tests that don't look into the items of what they are given."""
_WHOLE: Final = _names("max min sort unique")
"""Filters that read all of an iterator and look into its items; ``join`` does so by itself."""
_METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: _names(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit "
        "islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix "
        "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith "
        "strip swapcase title upper"
    ),
    dict: _names("copy get items keys values"),
    list: _names("copy count index"),
    tuple: _names("count index"),
}


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one rendering, or of the compilation of a template.

    Options and extensions are those of Hugging Face's ``apply_chat_template``.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, limits: RenderLimits) -> None:
        self.meter = Meter(limits)
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would run filters and operators while the template is compiled.
            optimized=False,
            finalize=self._output,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            cache_size=0,
        )
        own: dict[str, Callable[..., Any]] = {
            "indent": self._indent,
            "join": self._join,
            "list": self._list,
            "replace": self._replace,
            "tojson": _to_json,
        }
        kept: dict[str, Callable[..., Any]] = {name: FILTERS[name] for name in _FILTERS} | own
        self.filters = {
            name: self._guarded(function, deep=name not in _SHALLOW_FILTERS, whole=name in _WHOLE)
            for name, function in kept.items()
        }
        self.filters |= {
            LOOP: self.iterate,
            MADE: self._made,
            TEXT: self._text,
            USED: self._used,
        }
        tests: Mapping[str, Any] = TESTS
        self.tests = {
            name: self._guarded(test, deep=name not in _SHALLOW_TESTS)
            for name, test in tests.items()
        }
        del self.globals["lipsum"]

    def compile_template(self, source: str, filename: str) -> types.CodeType:
        """Compile ``source`` so that it reports to the meter of the environment it runs in."""
        tree = Instrumented().visit(self.parse(source))
        return self.compile(tree, filename=filename)

    def iterate(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same items, each reported."""
        spend = self.meter.spend
        for item in items:
            spend(_ITEM_BYTES)
            yield item

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls: macros, globals, and the methods of the allow-list."""
        self.meter.step()
        owner = getattr(function, "__self__", None)
        if isinstance(function, Macro):
            return super().call(context, function, *args, **kwargs)
        if isinstance(function, LoopContext):
            args = (self.iterate(args[0]), *args[1:])
            return super().call(context, function, *args, **kwargs)
        if isinstance(function, types.BuiltinMethodType) or isinstance(owner, str):
            args = self._method_args(owner, function.__name__, args)
            if isinstance(owner, dict) and function.__name__ == "get":
                return super().call(context, function, *args, **kwargs)
        else:
            # dict() hashes keys, loop.changed() compares, raise_exception() makes text of it.
            args = tuple(self._whole(value) for value in args)
            self._used((args, kwargs))
        return self._made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result can be larger than what it is made of."""
        if isinstance(left, str) and operator == "%":
            if _PERCENT_WIDTH.search(left):
                raise TemplateError(f"the chat template formats with a width too large: {left!r}")
            self.meter.spend(left.count("%") * self.meter.measure(right))
        elif operator == "*":
            self._before_multiplying(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _require_bits(left.bit_length() * abs(right))
        elif operator == "+" and (isinstance(left, Markup) or isinstance(right, Markup)):
            # Markup escapes what is added to it, which makes it up to six times as long.
            self.meter.spend(6 * (sys.getsizeof(left) + sys.getsizeof(right)))
        return self._made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up an index or a key."""
        if isinstance(argument, tuple):
            self._used(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` without large widths."""
        plain = super().wrap_str_format(value)
        if plain is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            fields = list(string.Formatter().parse(value.__self__))
            for _, _, spec, _ in fields:
                if spec and ("{" in spec or _LARGE_NUMBER.search(spec)):
                    raise TemplateError(f"the chat template formats with a width of {spec!r}")
            self.meter.spend(len(fields) * self.meter.measure(args, kwargs))
            return plain(*args, **kwargs)

        return checked

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a block or a macro."""
        pieces = list(parts)
        self.meter.spend(sum(map(len, pieces)))
        return "".join(pieces)

    @pass_context
    def _output(self, _context: Context, value: Any) -> Any:
        if not isinstance(value, str):
            self.meter.spend(self.meter.measure(value))
        self.meter.step()
        return value

    def _whole(self, value: Any) -> Any:
        """All items of an iterator, which can't be measured otherwise."""
        return list(self.iterate(value)) if isinstance(value, Iterator) else value

    def _used(self, value: Any) -> Any:
        """Report a value that is compared, hashed or turned into text."""
        self.meter.step()
        if not isinstance(value, _SCALARS):
            self.meter.require(self.meter.measure(value))
        return value

    def _text(self, value: Any) -> Any:
        """Report a value whose text becomes a part of a new text."""
        self.meter.spend(self.meter.measure(value))
        return value

    def _made(self, value: Any) -> Any:
        """Report a new value."""
        if isinstance(value, int):
            _require_bits(value.bit_length())
        self.meter.spend(sys.getsizeof(value))
        return self._lazy(value)

    def _lazy(self, value: Any) -> Any:
        """Have an iterator's items reported as they are made."""
        return self.iterate(value) if isinstance(value, Iterator) else value

    def _guarded(
        self, function: Callable[..., Any], *, deep: bool, whole: bool = False
    ) -> Callable[..., Any]:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        finish = self._made if deep else self._lazy

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if whole:
                args = (*args[:first], self._whole(args[first]), *args[first + 1 :])
            for value in args[first if deep else first + 1 :]:
                self._used(value)
            if kwargs:
                self._used(kwargs)
            return finish(function(*args, **kwargs))

        return guarded

    def _method_args(self, owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a method of a built-in type, after reporting what it will make."""
        allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), ())
        if name not in allowed:
            raise TemplateError(
                f"the chat template calls {type(owner).__name__}.{name}(), which isn't available"
            )
        if isinstance(owner, str):
            if name == "join" and args:
                args = (list(self.iterate(args[0])), *args[1:])
                self.meter.spend(len(args[0]) * _content_bytes(owner))
            elif name == "replace" and len(args) > 1:
                self.meter.spend(owner.count(args[0]) * _content_bytes(args[1]))
            elif "split" in name:
                separator = args[0] if args and isinstance(args[0], str) else ""
                parts = owner.count(separator) if separator else len(owner) // 4
                self.meter.spend(parts * _STRING_BYTES)
        self._used(args)
        return args

    def _before_multiplying(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            _require_bits(left.bit_length() + right.bit_length())
        for many, count in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(count, int):
                self.meter.spend(_content_bytes(many) * max(count, 0))

    def _list(self, value: Iterable[Any]) -> list[Any]:
        if isinstance(value, str):
            self.meter.spend(len(value) * _STRING_BYTES)
        return list(self.iterate(value))

    @pass_eval_context
    def _join(
        self, context: nodes.EvalContext, value: Iterable[Any], d: Any = "", attribute: Any = None
    ) -> str:
        items = list(self.iterate(value))
        self.meter.spend(self.meter.measure(items) + len(items) * _content_bytes(str(d)))
        joined: str = FILTERS["join"](context, items, d, attribute)
        return joined

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self.meter.spend(text.count(old) * _content_bytes(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(
        self,
        value: Any,
        width: int | str = 4,
        first: bool = False,  # noqa: FBT001, FBT002
        blank: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        _require_width(width)
        text = str(value)
        self.meter.spend(sys.getsizeof(text) + len(text.splitlines()) * 4 * _MAX_WIDTH)
        indented: str = FILTERS["indent"](text, width, first, blank)
        return indented


def _content_bytes(value: Any) -> int:
    """Bytes that a text or a list takes beyond those of an empty one."""
    return sys.getsizeof(value) - sys.getsizeof(type(value)())


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """As Hugging Face defines it: without escaping for HTML, and keys in their order."""
    _require_width(0 if indent is None else indent)
    for separator in separators or ():
        _require_width(separator)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=sort_keys,
    )


def _require_width(width: int | str) -> None:
    if (len(width) if isinstance(width, str) else width) > _MAX_WIDTH:
        raise TemplateError(f"the chat template indents by more than {_MAX_WIDTH}")


def _require_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateError(f"the chat template makes numbers of more than {_MAX_BITS} bits")
