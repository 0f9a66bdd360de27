"""SmolLM2 through real node processes over gRPC says what the unsplit model says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.setup import Unsplit, chain_of, generate
from meshnet.engine.llamacpp.vocabulary import Vocabulary

TOKENS = 64
PROMPTS = (
    "Why is the sky blue?",
    "Write a haiku about autumn.",
    "What is the capital of Australia?",
    "Explain recursion to a child.",
    "List three uses for a brick.",
    "Translate 'good morning' into French, German and Japanese.",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "What is 17 times 23? Think step by step.",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "Name a fruit.",
    "Was wissen Sie über den Rhein?",
    "请介绍一下北京。",
    "¿Cuál es la montaña más alta del mundo?",
    "🙂🙃 what do these mean?",
    "SELECT name FROM users WHERE",
    "The quick brown fox",
    "Give me a recipe for pancakes with exact amounts.",
    "a b c d e f g",
    "Repeat after me: one two three four five six seven eight nine ten.",
)


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> Iterator[dict[tuple[int, ...], tuple[int, ...]]]:
    """The unsplit model's tokens for each prompt's tokens."""
    unsplit = Unsplit(smollm2_path, threads=1, context_length=512)
    with Vocabulary.load(smollm2_path) as vocabulary:
        prompts = [
            vocabulary.tokenize(text, add_special=True, parse_special=True) for text in PROMPTS
        ]
    yield {prompt: unsplit.generate(prompt, TOKENS).tokens for prompt in prompts}
    unsplit.close()


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", [2, 3])
async def test_twenty_prompts_give_the_unsplit_models_tokens(nodes, expected, smollm2_path):
    assert len(expected) == len(PROMPTS)
    async with chain_of(smollm2_path, nodes, threads=1, context_length=512) as (model, _):
        made = {prompt: (await generate(model, prompt, TOKENS)).tokens for prompt in expected}
    assert made == expected
