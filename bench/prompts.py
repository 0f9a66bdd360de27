"""Prompts of three kinds, from which a guess at the next tokens gains little, much, and some."""

from __future__ import annotations

from enum import Enum

from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.template import ChatTemplate

_CODE = '''def mean_of_positive(values):
    """The mean of the values above zero; None if there are none."""
    total = 0
    count = 0
    for value in values:
        if value > 0:
            total = total + value
            count = count + 1
    if count == 0:
        return None
    return total / count


def largest_gap(values):
    """The largest difference between neighbours."""
    ordered = sorted(values)
    gap = 0
    for left, right in zip(ordered, ordered[1:]):
        if right - left > gap:
            gap = right - left
    return gap
'''
_EDIT = f"""Here is a file.

```python
{_CODE}```

Here is the whole file again. The only change is that `gap` is now called `widest`.

```python
"""
_LIST = "Monday rain, Tuesday sun, Wednesday wind, Thursday snow, Friday fog, "


class Kind(Enum):
    """How much of the answer is in the prompt already."""

    PLAIN = "plain"
    REPETITIVE = "repetitive"
    CODE = "code editing"


def prompt_of(kind: Kind, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The prompt's tokens; of plain text in the model's own chat template."""
    if kind is Kind.REPETITIVE:
        return tokenizer.tokenize(_LIST * 6, add_special=True, parse_special=False)
    if kind is Kind.CODE:
        # Not a chat: asked to change a file, so small a model writes another one.
        return tokenizer.tokenize(_EDIT, add_special=True, parse_special=False)
    question = "Tell me how the people of a small harbour town spend a winter's day."
    template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    text = template.render([{"role": "user", "content": question}], tools=None)
    return tokenizer.tokenize(text, add_special=False, parse_special=True)
