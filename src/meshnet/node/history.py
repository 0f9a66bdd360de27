"""The tokens that a tail's choice looks back at."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import EngineCapabilities, TokenChoice


class TokenHistory:
    """The tokens so far, as far back as the penalties look, and all that a grammar has seen.

    Those that the tail chose may be void later, when they followed a wrong guess: the token chosen
    anew at an earlier position then drops them.
    """

    def __init__(self, params: SamplingParams, tokens: Sequence[int], generated: int = 0) -> None:
        """``tokens``: the prompt's last ones, as :func:`recent` gives them; the last ``generated``
        of them are the beginning of what the grammar describes."""
        self.params = params
        self.tokens = list(tokens)
        self.generated = generated
        """How many of the last tokens were generated."""
        self._end: int | None = None
        """The position after the last of the tokens; None while they are the prompt's alone."""

    def choice(self, position: int, proposed: tuple[int, ...] = ()) -> TokenChoice:
        """How to choose after the row at ``position``, and after those of ``proposed`` tokens."""
        if not self.params.needs_history:
            return TokenChoice(self.params, proposed=proposed)
        # Nothing is dropped yet: a step that comes twice gets its first tokens, which stay.
        void = self._void(position + 1)
        before = self.tokens[: len(self.tokens) - void] if void else self.tokens
        generated = max(self.generated - void, 0) if self.params.grammar else 0
        last = tuple(recent(before, self.params, generated))
        return TokenChoice(self.params, last, proposed, generated)

    def chosen(self, position: int, token: int) -> None:
        """The tail chose the token at ``position``."""
        if self.params.needs_history:
            void = self._void(position)
            del self.tokens[len(self.tokens) - void :]
            self.generated = max(self.generated - void, 0) + 1
            self.tokens.append(token)
            self._end = position + 1

    def _void(self, end: int) -> int:
        """How many of the tokens don't come before the position ``end``."""
        void = 0 if self._end is None else max(self._end - end, 0)
        return min(void, len(self.tokens))


def require_grammar(params: SamplingParams, held: EngineCapabilities) -> None:
    """Raise :class:`InvalidArgumentError` on a tail that can't keep to a grammar."""
    if params.grammar and held.is_tail and not held.supports_grammar:
        raise InvalidArgumentError(
            "grammar", "the node that chooses the tokens can't keep them to a grammar; leave it out"
        )


def recent(tokens: Sequence[int], params: SamplingParams, generated: int = 0) -> list[int]:
    """The last tokens, as many as the penalties look at; for a grammar, all ``generated`` ones."""
    wanted = generated if params.grammar else 0
    if params.penalises:
        wanted = len(tokens) if params.penalty_last_n < 0 else max(wanted, params.penalty_last_n)
    return list(tokens[len(tokens) - wanted :]) if wanted < len(tokens) else list(tokens)
