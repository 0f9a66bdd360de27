"""What a model of random weights says under a grammar, without the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshnet.domain.sampling import SamplingParams
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.engine.sampling import sample
from meshnet.session.text import TextStream

LIMIT = 8000
WORD_SHARE = 0.15
ENDING = 4.0
"""How much likelier closing characters are than others: random texts must come to an end."""


def random_text(
    grammars: LlamaGrammars,
    vocabulary: Vocabulary,
    grammar: str,
    seed: int,
    words: Sequence[str] = (),
) -> str:
    """A text by random logits for every token; fails if it has no end.

    One of ``words`` is likely every now and then, wherever the text is.
    """
    logits = np.random.default_rng(seed)
    ends = vocabulary.end_of_generation
    likely = [*b'"]}', *ends]
    made: list[int] = []
    insisted: list[int] = []
    stream, text = TextStream(vocabulary), ""
    while len(made) < LIMIT:
        row = logits.standard_normal(vocabulary.n_vocab).astype(np.float32)
        row[likely] += ENDING
        if words and not insisted and logits.random() < WORD_SHARE:
            insisted = list(words[int(logits.integers(len(words)))].encode())
        if insisted:
            row[insisted.pop(0)] += 3 * ENDING
        allowed = grammars.allowed(grammar, made)
        token = sample(row, made, SamplingParams(seed=seed), len(made), allowed).token_id
        if token in ends:
            return text + stream.finish()
        made.append(token)
        text += stream.feed(token)
    raise AssertionError(f"no end after {LIMIT} tokens: {text[:200]}")
