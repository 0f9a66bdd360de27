"""Tokens of a text and back, in llama-server's form."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.tokens import detokenize, tokenize
from tests.support.scripted_model import ScriptedModel

ONE = {"scripted": ScriptedModel()}
TWO = ONE | {"other": ScriptedModel(name="other")}


@given(text=st.text())
def test_a_text_comes_back(text: str) -> None:
    told = tokenize(json.dumps({"content": text}).encode(), ONE)
    assert detokenize(json.dumps(told).encode(), ONE) == {"content": text}


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({}, [258, 97]),
        ({"add_special": True}, [256, 258, 97]),
        ({"parse_special": False}, [*b"<|im_start|>a"]),
        ({"add_special": None, "parse_special": None, "model": None}, [258, 97]),
        ({"with_pieces": False, "something_else": 1}, [258, 97]),
    ],
)
def test_control_tokens_are_read_unless_told_otherwise(
    asked: dict[str, object], tokens: list[int]
) -> None:
    body = json.dumps({"content": "<|im_start|>a"} | asked).encode()
    assert tokenize(body, ONE) == {"tokens": tokens}


def test_control_tokens_are_shown_and_half_characters_marked() -> None:
    assert detokenize(b'{"tokens": [258, 97, 195]}', ONE) == {"content": "<|im_start|>a�"}
    assert detokenize(b'{"tokens": []}', ONE) == {"content": ""}


async def asked(path: str, body: object, models: dict[str, ScriptedModel]) -> tuple[int, Any]:
    transport = httpx.ASGITransport(create_app(list(models.values()), GatewayConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.post(path, json=body)
    return answer.status_code, answer.json()


async def test_both_are_served() -> None:
    assert await asked("/tokenize", {"content": "a"}, ONE) == (200, {"tokens": [97]})
    assert await asked("/detokenize", {"tokens": [97]}, ONE) == (200, {"content": "a"})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "a", "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"content": "a", "model": "nope"}, "model"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, 1.5]}, "tokens[1]"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
    ],
)
async def test_what_cant_be_done_is_refused_by_name(path: str, body: object, param: str) -> None:
    status, told = await asked(path, body, ONE)
    assert (status // 100, told["error"]["param"]) == (4, param)


async def test_of_several_models_one_must_be_named() -> None:
    status, told = await asked("/tokenize", {"content": "a"}, TWO)
    assert (status, told["error"]["param"]) == (400, "model")
    assert (await asked("/tokenize", {"content": "a", "model": "other"}, TWO))[0] == 200
