"""From token ids to text that is safe to show: whole characters, up to a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.tokenizer import Tokenizer


class TextStream:
    """A state machine fed with token ids. What it has given out never has to be taken back.

    Bytes become text once their character is complete; bytes that can't begin or continue one
    become U+FFFD as soon as that is certain. Text that a stop string may begin with is held back.
    The stop string that ends first in the text wins, the longest among those that end together;
    the text before it is given out, and nothing from it on. Neither the tokens that end a
    generation nor control tokens have text, the latter unless ``special`` or ``shown``.

    Raises :class:`InvalidArgumentError` for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        special: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._shown = shown
        self._stops = tuple(_StopString(stop) for stop in stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was met."""

    def feed(self, token_id: int) -> str:
        """Take the next token and give out what became safe; nothing any more after a stop.

        Raises :class:`InvalidArgumentError` for an id outside the vocabulary.
        """
        if token_id in self._tokenizer.end_of_generation:
            return ""
        special = self._special or token_id in self._shown
        piece = self._tokenizer.piece(token_id, special=special)
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """Give out what was held back, since no token follows; half a character is left out."""
        text, self._held = self._held, ""
        return text

    def _advance(self, decoded: str) -> str:
        if self.stopped is not None:
            return ""
        for length, character in enumerate(decoded, 1):
            ended = [stop.text for stop in self._stops if stop.ends_with(character)]
            if ended:
                self.stopped = max(ended, key=len)
                text = self._held + decoded[:length]
                self._held = ""
                return text.removesuffix(self.stopped)
        text = self._held + decoded
        safe = len(text) - max((stop.begun for stop in self._stops), default=0)
        self._held = text[safe:]
        return text[:safe]


class _StopString:
    """Follows one stop string through a text; the search of Knuth, Morris and Pratt (1977)."""

    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidArgumentError("stop", "a stop string can't be empty")
        self.text = text
        self.begun = 0
        """Length of the longest start of the stop string that the text seen so far ends with."""
        self._shorter = [0]
        begun = 0
        for character in text[1:]:
            begun = self._next(begun, character)
            self._shorter.append(begun)

    def ends_with(self, character: str) -> bool:
        """Take the next character and tell whether it completes the stop string."""
        self.begun = self._next(self.begun, character)
        return self.begun == len(self.text)

    def _next(self, begun: int, character: str) -> int:
        while begun and (begun == len(self.text) or self.text[begun] != character):
            begun = self._shorter[begun - 1]
        return begun + (self.text[begun] == character)
