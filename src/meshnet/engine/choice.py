"""A tail's output: the tokens that a step's request asks for, chosen from the rows' logits."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.engine.base import Output, StepRequest, TokenOutput
from meshnet.engine.sampling import Logits, sample


def choose(request: StepRequest, logits: Sequence[Logits]) -> Output:
    """The token after each of the step's last rows, ``request.choices`` rows of shape (n_vocab,).

    Each is chosen for its own position, with the tokens of the rows before it in its history: as
    if every row had been a step of its own. Raises as :func:`~meshnet.engine.sampling.sample`.
    """
    first = request.position + request.rows - request.choices + 1
    made = tuple(_token(request, number, row, first + number) for number, row in enumerate(logits))
    return made if len(made) > 1 else made[0]


def _token(request: StepRequest, number: int, logits: Logits, position: int) -> TokenOutput:
    choice = request.choice
    chosen = sample(logits, choice.before(number), choice.params, position)
    return TokenOutput(chosen.token_id, None, chosen.logprob, chosen.top_logprobs)
