"""A tail's output: the tokens that a step's request asks for, chosen from the rows' logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import SessionKey
from meshnet.engine.base import Output, StepRequest, TokenOutput
from meshnet.engine.sampling import Allowed, Logits, sample


class Grammars(Protocol):
    """What can tell which tokens a grammar allows."""

    def allowed(self, grammar: str, generated: Sequence[int], session: SessionKey) -> Allowed:
        """The tokens that may follow the ``generated`` ones, a pure function of both.

        ``session`` pays for what it takes to tell.
        """


def choose(
    request: StepRequest, logits: Sequence[Logits], grammars: Grammars | None = None
) -> Output:
    """The token after each of the step's last rows, ``request.choices`` rows of shape (n_vocab,).

    Each is chosen for its own position, with the tokens of the rows before it in its history: as
    if every row had been a step of its own. With a grammar that holds up to the first choice that
    differs from what was proposed; those behind it follow no grammar, and nobody can use them.
    Raises as :func:`~meshnet.engine.sampling.sample`, and :class:`InvalidArgumentError` for a
    grammar without ``grammars``.
    """
    first = request.position + request.rows - request.choices + 1
    proposed, made = request.choice.proposed, list[TokenOutput]()
    for number, row in enumerate(logits):
        agreed = all(one.token_id == other for one, other in zip(made, proposed, strict=False))
        allowed = _allowed(request, number, grammars) if agreed else None
        made.append(_token(request, number, row, first + number, allowed))
    return tuple(made) if len(made) > 1 else made[0]


def _allowed(request: StepRequest, number: int, grammars: Grammars | None) -> Allowed | None:
    grammar = request.choice.params.grammar
    if not grammar:
        return None
    if grammars is None:
        raise InvalidArgumentError("grammar", "this engine can't keep its tokens to a grammar")
    return grammars.allowed(grammar, request.choice.generated_before(number), request.key)


def _token(
    request: StepRequest, number: int, logits: Logits, position: int, allowed: Allowed | None
) -> TokenOutput:
    choice = request.choice
    chosen = sample(logits, choice.before(number), choice.params, position, allowed)
    return TokenOutput(chosen.token_id, None, chosen.logprob, chosen.top_logprobs)
