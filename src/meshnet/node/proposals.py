"""Guesses at what comes next, from the text so far and without a model.

Text repeats itself: names, code, quotations, lists. Where the last tokens occurred before, what
came after them then is a good guess ("prompt lookup decoding", A. Saxena, 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 2)
"""How many of the last tokens are looked for; the first that occurred before decides."""


class PromptLookup:
    """The tokens that came after the text's end where it occurred last, each in constant time.

    Where the copy reaches the end of the text it goes on with its own beginning, so that a text
    with a period is continued with it.
    """

    def __init__(self) -> None:
        self._log: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        """Where the text went on after each run of tokens, but for the one at the log's end."""
        self._source: int | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens."""
        log, after = self._log, self._after
        for token in tokens:
            for length in LENGTHS:
                if len(log) >= length:
                    after[tuple(log[-length:])] = len(log)
            log.append(token)

    def guess(self, pending: Sequence[int]) -> int | None:
        """The token after the text and ``pending``, which are the guesses made since it last grew
        by something else than what was guessed; None if there is no guess."""
        log = self._log
        if not pending:
            ends = (tuple(log[-length:]) for length in LENGTHS if len(log) >= length)
            self._source = next((self._after[end] for end in ends if end in self._after), None)
        source = self._source
        if source is None:
            return None
        self._source = source + 1
        return log[source] if source < len(log) else pending[source - len(log)]
