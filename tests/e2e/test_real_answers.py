"""The OpenAI API over node processes says, streamed and not, what llama-cpp-python says unsplit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from bench.setup import chain_of
from meshnet.node.config import CHUNK_TOKENS
from tests.support.live_gateway import live_gateway
from tests.support.reference import Expected, Reference

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

CONTEXT = 512
LIMIT = 16
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Case:
    """A text to go on with, or a conversation of (role, content)."""

    prompt: str | tuple[tuple[str, str], ...]
    limit: int = LIMIT
    stops: tuple[str, ...] = ()


def chat(*texts: str, limit: int = LIMIT, stops: tuple[str, ...] = ()) -> Case:
    """A conversation that the user begins."""
    roles = ("user", "assistant")
    return Case(tuple((roles[n % 2], text) for n, text in enumerate(texts)), limit, stops)


LONG = "The river rises in the hills and runs to the sea. " * 11
CASES = (
    # Chats, most of which end by themselves.
    chat("What is the capital of France? Answer with one word.", limit=40),
    chat("Say hello.", limit=40),
    chat("What is 2 + 2?", limit=40),
    chat("Is the sky blue? Answer yes or no.", limit=40),
    chat("Name a fruit.", limit=40),
    chat("Repeat after me: one two three", limit=40),
    chat("Name a colour.", "Red.", "Another one.", limit=40),
    chat("Hi", "Hello! How can I help you today?", "Thanks, bye.", limit=40),
    Case((("system", "Answer in one word."), ("user", "What do cows drink?")), 40),
    Case((("system", ""), ("user", "Who are you?")), 40),
    # Cut off.
    chat("Why is the sky blue?"),
    chat("Write a haiku about autumn.", limit=1),
    chat("Explain recursion to a child.", limit=7),
    chat("Summarise the plot of Romeo and Juliet in two sentences."),
    chat(LONG + "What was this about?"),
    # More than ASCII.
    chat("请介绍一下北京。"),
    chat("🙂🙃 what do these mean?"),
    chat("Traduis en français : the cat sleeps near the window."),
    chat("Was heißt „good morning“ auf Deutsch, Französisch und Japanisch?"),
    chat("¿Cuál es la montaña más alta del mundo?"),
    Case("你好。世界。你好。世界。你好。世界。你好。"),
    Case("北京 上海 广州 深圳 北京 上海 广州 深圳 北京 上海"),
    Case("🙂 🙃 🙂 🙃 🙂 🙃 🙂 🙃 🙂"),
    Case("👩‍🚀👩‍🚀👩‍🚀👩‍🚀👩‍🚀👩‍🚀"),
    Case("żółć, café, naïve, Straße, żółć, café, naïve, Straße, żółć,"),
    Case("Привет, мир. Привет, мир. Привет,"),
    Case("こんにちは世界。こんにちは世界。こんにちは"),
    Case("你好。世界。你好。世界。你好。世界。你好。", limit=5),
    # Stop strings, within tokens and across them.
    chat("Count from one to twenty, in words.", stops=("seven", "345")),
    chat("What is the capital of Australia?", limit=40, stops=(".",)),
    chat("List three uses for a brick.", limit=40, stops=("\n2", "uses for")),
    Case("one, two, three, four, five,", stops=(" ten", "nd nine")),
    chat("请介绍一下北京。", stops=("京, a",)),
    Case("北京 上海 广州 深圳 北京 上海 广州 深圳 北京 上海", stops=("圳 北京",)),
    Case("🙂 🙃 🙂 🙃 🙂 🙃 🙂 🙃 🙂", stops=("🙃🙃🙃",)),
    Case("żółć, café, naïve, Straße, żółć, café, naïve, Straße, żółć,", 24, ("aße, ż",)),
    Case("The quick brown fox", stops=("never to be seen",)),
    # Next to nothing, code, and odd ones.
    Case(" "),
    Case("\n"),
    chat(""),
    Case("def fibonacci(n):\n", limit=40),
    Case("SELECT name FROM users WHERE", limit=1),
    Case("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", limit=40),
)


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> Iterator[Mapping[Case, Expected]]:
    with Reference(smollm2_path, CONTEXT, CHUNK_TOKENS) as unsplit:
        yield {
            case: unsplit.complete(case.prompt, case.limit, case.stops)
            if isinstance(case.prompt, str)
            else unsplit.chat(case.prompt, case.limit, case.stops)
            for case in CASES
        }


def test_the_cases_are_of_every_kind(expected: Mapping[Case, Expected]) -> None:
    """So that the comparison below is one."""
    answers = list(expected.items())
    assert len(answers) >= 40
    by_stop = [case for case, it in answers if case.stops and it.finish_reason == "stop"]
    by_turn = [case for case, it in answers if not case.stops and it.finish_reason == "stop"]
    assert len(by_stop) >= 5
    assert len(by_turn) >= 5
    assert sum(it.finish_reason == "length" for _, it in answers) >= 10
    assert sum(not it.text.isascii() for _, it in answers) >= 8


@pytest.mark.parametrize("nodes", [2, 3])
async def test_every_answer_is_the_unsplit_models(nodes, expected, smollm2_path):
    cases = CASES if nodes == 2 else CASES[::4]
    async with (
        chain_of(smollm2_path, nodes, threads=1, context_length=CONTEXT) as (model, _),
        live_gateway(model) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        for case in cases:
            answer = await whole(client, model.name, case)
            assert answer == expected[case], case
            pieces, streamed = await stream(client, model.name, case)
            assert streamed == answer, case
            odd = [piece for piece in pieces if REPLACEMENT in piece]
            assert not odd or REPLACEMENT in answer.text, case


def parameters(model: str, case: Case) -> dict[str, Any]:
    """What either endpoint is asked with."""
    shared: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": case.limit}
    if case.stops:
        shared["stop"] = list(case.stops)
    if isinstance(case.prompt, str):
        return shared | {"prompt": case.prompt}
    return shared | {"messages": [{"role": role, "content": it} for role, it in case.prompt]}


async def whole(client: AsyncOpenAI, model: str, case: Case) -> Expected:
    asked = parameters(model, case)
    if "prompt" in asked:
        answer = await client.completions.create(**asked)
        text = answer.choices[0].text
    else:
        answer = await client.chat.completions.create(**asked)
        text = answer.choices[0].message.content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    reason = answer.choices[0].finish_reason
    return Expected(text, reason, usage.prompt_tokens, usage.completion_tokens)


async def stream(client: AsyncOpenAI, model: str, case: Case) -> tuple[list[str], Expected]:
    """The pieces in which a streamed answer came, and all of it."""
    asked = parameters(model, case) | {"stream": True, "stream_options": {"include_usage": True}}
    endpoint: Any = client.completions if "prompt" in asked else client.chat.completions
    chunks = [chunk async for chunk in await endpoint.create(**asked)]
    *told, last = chunks
    choices = [chunk.choices[0] for chunk in told]
    pieces = [it.text if "prompt" in asked else it.delta.content or "" for it in choices]
    reasons = [it.finish_reason for it in choices if it.finish_reason]
    assert len(reasons) == 1
    assert choices[-1].finish_reason == reasons[0]
    usage = last.usage
    return pieces, Expected(
        "".join(pieces), reasons[0], usage.prompt_tokens, usage.completion_tokens
    )
