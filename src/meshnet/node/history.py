"""The tokens that a tail's choice looks back at."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import TokenChoice


class TokenHistory:
    """The tokens so far, as far back as the penalties look.

    Those that the tail chose may be void later, when they followed a wrong guess: the token chosen
    anew at an earlier position then drops them.
    """

    def __init__(self, params: SamplingParams, tokens: Sequence[int]) -> None:
        """``tokens``: the prompt's last ones, as many as the penalties look at."""
        self.params = params
        self.tokens = list(tokens)
        self._end: int | None = None
        """The position after the last of the tokens; None while they are the prompt's alone."""

    def choice(self, position: int, proposed: tuple[int, ...] = ()) -> TokenChoice:
        """How to choose after the row at ``position``, and after those of ``proposed`` tokens."""
        if not self.params.needs_history:
            return TokenChoice(self.params, proposed=proposed)
        # Nothing is dropped yet: a step that comes twice gets its first tokens, which stay.
        length = self._length(position + 1)
        before = self.tokens if length == len(self.tokens) else self.tokens[:length]
        return TokenChoice(self.params, tuple(recent(before, self.params)), proposed)

    def chosen(self, position: int, token: int) -> None:
        """The tail chose the token at ``position``."""
        if self.params.needs_history:
            del self.tokens[self._length(position) :]
            self.tokens.append(token)
            self._end = position + 1

    def _length(self, end: int) -> int:
        """How many of the tokens come before the position ``end``."""
        void = 0 if self._end is None else max(self._end - end, 0)
        return max(len(self.tokens) - void, 0)


def recent(tokens: Sequence[int], params: SamplingParams) -> list[int]:
    """The last tokens, as many as the penalties look at; none if no penalty is on."""
    if not params.needs_history:
        return []
    return list(tokens if params.penalty_last_n < 0 else tokens[-params.penalty_last_n :])
