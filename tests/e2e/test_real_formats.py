"""A real model keeps to schemas, through node processes, the same on one node and on three."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI

from bench.setup import chain_of
from tests.support.live_gateway import live_gateway
from tests.support.schemas import SCHEMAS

ASKED: Mapping[str, str] = {
    "from pydantic": "How can I solve 8x + 7 = -23? Answer in two short steps.",
    "one of by a constant": "Describe a circle with the radius 3.",
    "array with bounds": "Which are the first prime numbers?",
    "enum of texts": "What is the colour of grass?",
    "e-mail": "How can I reach Ada at example.com?",
    "date and time": "When did people first land on the moon?",
}
LIMIT = 120


@pytest.mark.model
@pytest.mark.timeout(900)
async def test_answers_are_valid_and_do_not_depend_on_the_chain(smollm2_path):
    made: dict[int, dict[tuple[str, float], str]] = {}
    for nodes in (1, 3):
        async with (
            chain_of(smollm2_path, nodes, threads=1, context_length=1024) as (model, _),
            live_gateway(model) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300) as client,
        ):
            made[nodes] = {
                (name, temperature): await answer(client, model.name, name, temperature)
                for name in ASKED
                for temperature in (0.0, 0.8)
            }
    assert made[1] == made[3]


async def answer(client: AsyncOpenAI, model: str, name: str, temperature: float) -> str:
    """The text of an answer that follows a schema; it must be valid unless it was cut off."""
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS[name]}}
    said = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": ASKED[name]}],
        response_format=schema,
        temperature=temperature,
        seed=5,
        max_tokens=LIMIT,
    )
    text = said.choices[0].message.content or ""
    if said.choices[0].finish_reason == "length":
        assert said.usage is not None and said.usage.completion_tokens == LIMIT
        return text
    checked = jsonschema.Draft202012Validator
    checked(SCHEMAS[name], format_checker=checked.FORMAT_CHECKER).validate(json.loads(text))
    return text
