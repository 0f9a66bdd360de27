"""A model's chat template: from a conversation to the text of a prompt."""

from __future__ import annotations

import functools
import json
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2

from meshnet.domain.errors import InvalidArgumentError, TemplateError
from meshnet.session.meter import RenderLimits
from meshnet.session.sandbox import MeteredEnvironment
from meshnet.session.tools.families import THOUGHTS

_FILENAME: Final = "<chat template>"
_PROBE: Final = "probe-1a2b3c"
_MAX_TIME_FORMAT: Final = 256
_MAX_MESSAGE: Final = 500
_FAULTS: Final = (
    TemplateError,
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a template's expressions can raise."""

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _CallForm:
    """How a template wants to be told of calls."""

    as_text: bool
    """Arguments as the text of a JSON object, not as the object."""
    without_content: bool
    """A turn of nothing but calls has no content, rather than an empty one."""

    def of(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message in this form, if it has calls."""
        if not message.get("tool_calls"):
            return message
        calls = [self._call(call) for call in message["tool_calls"]]
        content = message.get("content") or (None if self.without_content else "")
        return {**message, "content": content, "tool_calls": calls}

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        if not self.as_text:
            return call
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}


_CALL_FORMS: Final = (
    _CallForm(as_text=False, without_content=False),
    _CallForm(as_text=True, without_content=False),
    _CallForm(as_text=False, without_content=True),
    _CallForm(as_text=True, without_content=True),
)
"""In the order in which they are tried."""


class ChatTemplate:
    """Renders conversations as Hugging Face's ``apply_chat_template`` does, within limits.

    Nothing is raised before :meth:`render`, since a model whose template is absent or broken can
    still complete plain text. ``now`` gives the time that a template may write into the prompt.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str,
        eos_token: str,
        *,
        limits: RenderLimits = RenderLimits(),  # noqa: B008 - frozen
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        self._limits = limits
        self._now = now

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **extra: object,
    ) -> str:
        """The prompt for ``messages``, each with a ``role`` and a ``content``.

        Content is a text, absent, or a list of parts ``{"type": "text", "text": ...}``; it is
        handed to the template in the form that the template can read. So are ``tool_calls``, whose
        arguments are objects here, as Hugging Face's templates expect. ``extra`` are further
        variables of the template. Raises :class:`TemplateError` with the template's own words and
        line, and :class:`InvalidArgumentError` for a message of another form.
        """
        given = [_message(index, message) for index, message in enumerate(messages)]
        if any(isinstance(message.get("content"), str | list) for message in given):
            given = [{**message, **self._readable(message)} for message in given]
        if any(message.get("tool_calls") for message in given):
            given = [self._call_form.of(message) for message in given]
        return self._render(given, add_generation_prompt, tools, extra)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None = None
    ) -> str:
        """The prompt for the turn that follows ``messages``; raises as :meth:`render` does.

        An assistant's text at the end is the beginning of that turn. Where the template begins
        it with reasoning, that is over: the text is a part of the answer.
        """
        last = messages[-1] if messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            return self.render(messages, tools=tools)
        content = _joined(_message(len(messages) - 1, last).get("content") or "")
        begun = self.render(messages[:-1], tools=tools)
        for opening, closing in THOUGHTS:
            if content and begun.rstrip().endswith(opening):
                thought = last.get("reasoning_content") or ""
                begun = f"{begun}{thought}\n{closing}\n\n"
        return begun + content

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,  # noqa: FBT001
        tools: Sequence[Mapping[str, object]] | None,
        extra: Mapping[str, object],
    ) -> str:
        code = self._code
        environment = MeteredEnvironment(self._limits)
        functions = {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        names = environment.globals | functions
        template = jinja2.Template.from_code(environment, code, names)
        variables = {
            **self._special,
            "documents": None,
            **extra,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        try:
            for piece in template.generate(variables):
                pieces.append(piece)
                environment.meter.emit(len(piece))
        except _FAULTS as error:
            _raise_with_line(error)
        return "".join(pieces)

    @functools.cached_property
    def _code(self) -> types.CodeType:
        source = self._source
        if source is None or not source.strip():
            raise TemplateError(
                "this model has no chat template, so it can't take messages; send a plain prompt "
                "to /v1/completions instead"
            )
        if len(source) > self._limits.source_characters:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than "
                f"{self._limits.source_characters}"
            )
        try:
            return MeteredEnvironment(self._limits).compile_template(source, _FILENAME)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template isn't valid: {error.message} (line {error.lineno})",
                line=str(error.lineno),
            ) from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise TemplateError(f"the chat template can't be compiled: {error}") from error

    def _readable(self, message: Message) -> Message:
        """The content in a form that the template reads."""
        content = message.get("content")
        if isinstance(content, list) and not self._reads_parts:
            return {"content": _joined(content)}
        if isinstance(content, str) and not self._reads_text and self._reads_parts:
            return {"content": [{"type": "text", "text": content}]}
        return {}

    @functools.cached_property
    def _reads_text(self) -> bool:
        return _PROBE in self._probe(_PROBE)

    @functools.cached_property
    def _reads_parts(self) -> bool:
        shown = self._probe([{"type": "text", "text": _PROBE}])
        # A template that only knows text prints the list as such, in Python's or JSON's notation.
        return _PROBE in shown and "'text'" not in shown and '"text"' not in shown

    @functools.cached_property
    def _call_form(self) -> _CallForm:
        """The form of calls that the template writes; the usual one if it writes none."""
        function: dict[str, object] = {"name": "f", "arguments": {_PROBE: 1}}
        call = {"id": "123456789", "type": "function", "function": function}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        schema = {"type": "object", "properties": {}}
        tool = {"name": "f", "description": "", "parameters": schema}
        tools = [{"type": "function", "function": tool}]
        for form in _CALL_FORMS:
            shown = self._probe("?", form.of(turn), tools=tools)
            if _PROBE in shown and f"'{_PROBE}'" not in shown:
                return form
        return _CALL_FORMS[0]

    def _probe(
        self,
        content: object,
        *more: Message,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        try:
            return self._render([{"role": "user", "content": content}, *more], False, tools, {})  # noqa: FBT003
        except TemplateError:
            return ""

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_TIME_FORMAT:
            raise TemplateError("the chat template formats the time with too long a text")
        return self._now().strftime(form)


def _message(index: int, message: Message) -> dict[str, Any]:
    """A copy that can be handed to a template, after checking its form."""
    if not isinstance(message.get("role"), str):
        raise InvalidArgumentError(f"messages[{index}].role", "a message needs a role")
    content = message.get("content")
    if "content" in message and content is None:
        # Templates that print a content without looking would print "None".
        return {**message, "content": ""}
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        return {**message, "content": [_part(index, part) for part in content]}
    if content is not None and not isinstance(content, str):
        raise InvalidArgumentError(
            f"messages[{index}].content", "it must be a text or a list of text parts"
        )
    return dict(message)


def _part(index: int, part: object) -> dict[str, str]:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise InvalidArgumentError(
            f"messages[{index}].content", 'every part must have the type "text"'
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidArgumentError(f"messages[{index}].content", "a text part needs a text")
    return {"type": "text", "text": text}


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the chat template refuses this conversation: {message}")


def _raise_with_line(error: BaseException) -> NoReturn:
    own = (
        error.message if isinstance(error, TemplateError) else f"the chat template failed: {error}"
    )
    if isinstance(error, RecursionError):
        own = "the chat template was stopped: it nests too deeply"
    own = own if len(own) <= _MAX_MESSAGE else f"{own[:_MAX_MESSAGE]}..."
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == _FILENAME
    ]
    if not lines:
        raise TemplateError(own) from error
    raise TemplateError(f"{own} (line {lines[-1]} of the template)", line=str(lines[-1])) from error
