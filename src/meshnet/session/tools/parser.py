"""Takes a model's output apart while it comes: text, reasoning, calls of tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshnet.session.tools.families import OutputFormat
from meshnet.session.tools.grammars import NoCallError, Steps
from meshnet.session.tools.parts import Part, Reasoning, Text, ToolCall, Tools

RESCAN = 256
"""What turns out to be no call is searched for another one if it is at most that long."""
HELD_SPACE = 64
"""Longer space is text, wherever it stands."""


@dataclass(frozen=True, slots=True)
class OutputTerms:
    """What is to be made of one answer's output."""

    form: OutputFormat = field(default_factory=OutputFormat)
    tools: Tools | None = None
    """None looks for no calls."""
    thinking: bool = False
    """Whether the prompt has begun the reasoning already."""
    single_call: bool = False
    """Leave out the calls after the first."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are looked for, and may be names of control tokens."""
        family = self.form.calls if self.tools is not None else None
        of_calls = () if family is None else (*family.openers, *family.closers, *family.inner)
        return of_calls + (self.form.thoughts or ())

    def parser(self) -> OutputParser:
        """A parser for one choice of the answer."""
        return OutputParser(self)


class OutputParser:
    """A state machine fed with text. Its parts don't depend on where the text was cut.

    A call is given out once it is complete and valid. What begins like one and isn't comes as
    text: nothing is lost but the markers, and the space around calls and reasoning.
    """

    def __init__(self, terms: OutputTerms) -> None:
        self._family = terms.form.calls if terms.tools is not None else None
        self._tools: Tools = terms.tools or {}
        self._thoughts = terms.form.thoughts
        self._thinking = terms.thinking and terms.form.thoughts is not None
        self._single = terms.single_call
        self._plain = self._family is None and self._thoughts is None
        self._at_start = True
        self._after_marker = self._thinking
        """Whether space that follows is a part of the markup."""
        self._after_call = False
        self._after_first = False
        self._steps: Steps | None = None
        self._held: list[str] = []
        """Space, a marker's beginning, or what may become a call."""
        self._input: deque[str] = deque()
        self._parts: list[Part] = []

    @property
    def thinking(self) -> bool:
        """Whether what follows is reasoning, as far as it is certain."""
        return self._thinking

    def feed(self, text: str) -> list[Part]:
        """Take more text and give out what became certain."""
        if self._plain:
            return [Text(text)] if text else []
        self._input.extend(text)
        while self._input:
            character = self._input.popleft()
            self._held.append(character)
            if self._steps is None:
                self._look()
            else:
                self._advance(self._steps, character)
        return self._taken()

    def finish(self) -> list[Part]:
        """Give out what was held back, since no text follows."""
        held, self._held, self._steps = "".join(self._held), [], None
        if held.strip() or not self._after_marker:
            self._emit(held)
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _look(self) -> None:
        """Decide what the held text is: space, the beginning of a marker, a marker, or text."""
        held = "".join(self._held)
        body = held.lstrip()
        markers = self._markers()
        if not body:
            if len(held) > HELD_SPACE:
                self._held = []
                self._emit(held)
        elif body in markers:
            self._enter(markers[body], body)
        elif not any(marker.startswith(body) for marker in markers):
            self._held = []
            self._emit(held[: len(held) - len(body) + 1])
            self._input.extendleft(reversed(body[1:]))

    def _markers(self) -> Mapping[str, str]:
        """The markers that count here, with what they are."""
        if self._thoughts is not None and self._thinking:
            return {self._thoughts[1]: "answer"}
        markers: dict[str, str] = {}
        if self._family is not None:
            markers |= dict.fromkeys(self._family.openers, "call")
            if self._after_call:
                markers |= dict.fromkeys(self._family.closers, "closer")
            if self._at_start and self._family.bare:
                markers[self._family.bare] = "call"
        if self._thoughts is not None and self._at_start:
            markers[self._thoughts[0]] = "thoughts"
        return markers

    def _enter(self, kind: str, marker: str) -> None:
        if kind == "call" and self._family is not None:
            self._steps = self._family.grammar(marker, self._tools)
            next(self._steps)
            return
        self._held = []
        self._after_marker = True
        self._thinking = kind == "thoughts"
        # An answer that begins after the reasoning may be a bare call.
        self._at_start = kind == "answer"

    def _advance(self, steps: Steps, character: str) -> None:
        try:
            call = steps.send(character)
        except NoCallError:
            self._steps = None
            self._give_up()
        except StopIteration:
            # The grammar was done before this character.
            self._steps = None
            self._held = []
            self._input.appendleft(character)
        else:
            if call is not None:
                self._found(call)

    def _found(self, call: ToolCall) -> None:
        if not (self._single and self._after_first):
            self._parts.append(call)
        self._held = []
        self._after_first = True
        self._at_start = False
        self._after_marker = self._after_call = True

    def _give_up(self) -> None:
        """What was held is text; a marker may begin behind its first character."""
        held, self._held = "".join(self._held), []
        if len(held) > RESCAN:
            self._emit(held)
            return
        first = len(held) - len(held.lstrip()) + 1
        self._emit(held[:first])
        self._input.extendleft(reversed(held[first:]))

    def _emit(self, text: str) -> None:
        text = text.lstrip() if self._after_marker else text
        if not text:
            return
        kind = Reasoning if self._thinking else Text
        last = self._parts[-1] if self._parts else None
        if isinstance(last, kind):
            self._parts[-1] = kind(last.text + text)
        else:
            self._parts.append(kind(text))
        self._at_start = self._after_marker = self._after_call = False
