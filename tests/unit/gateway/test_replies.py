import json
import math
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from meshnet.domain.errors import InternalError
from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.domain.sampling import TokenLogprob
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.gateway.replies import ChatReply, CompletionReply, Reply, ReplyTerms, sse
from meshnet.session.service import GenerationSummary, TextDelta

SUMMARY = GenerationSummary(FinishReason.STOP, 5, 2, 0.1, 0.2)
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def terms(*, logprobs: bool = False, include_usage: bool = False) -> ReplyTerms:
    return ReplyTerms("id-1", 1700000000, "m", ByteTokenizer(), logprobs, include_usage)


def token(text: bytes, logprob: float | None = -0.5, *others: TokenLogprob) -> GeneratedToken:
    return GeneratedToken(9, text[0], logprob, others)


def chunks_of(reply: Reply, *deltas: TextDelta) -> list[dict[str, Any]]:
    pieces = [chunk for delta in deltas for chunk in reply.piece(delta)]
    return [*reply.opening(), *pieces, *reply.closing(SUMMARY)]


def test_a_chat_answer_is_openais_chat_completion() -> None:
    deltas = [TextDelta("Hel", ()), TextDelta("lo", ())]
    body = ChatReply(terms()).whole(deltas, SUMMARY)
    assert body == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    ChatCompletion.model_validate(body, strict=True)


def test_a_chat_stream_names_the_role_first_and_the_reason_last() -> None:
    chunks = chunks_of(ChatReply(terms()), TextDelta("Hi", ()))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hi"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert {chunk["id"] for chunk in chunks} == {"id-1"}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
def test_usage_comes_in_a_last_chunk_without_choices_if_asked_for(kind: type[Reply]) -> None:
    *others, last = chunks_of(kind(terms(include_usage=True)), TextDelta("Hi", ()))
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert all(chunk["usage"] is None for chunk in others)


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
def test_a_delta_without_text_makes_a_chunk_only_for_its_logprobs(kind: type[Reply]) -> None:
    silent = TextDelta("", (token(b"H"),))
    assert kind(terms()).piece(silent) == []
    assert len(kind(terms(logprobs=True)).piece(silent)) == 1
    assert kind(terms(logprobs=True)).piece(TextDelta("", ())) == []


def test_chat_logprobs_give_text_bytes_and_alternatives() -> None:
    chosen = token(b"H", -0.5, TokenLogprob(ord("H"), -0.5), TokenLogprob(0xE2, -math.inf))
    body = ChatReply(terms(logprobs=True)).whole([TextDelta("H", (chosen,))], SUMMARY)
    answer = ChatCompletion.model_validate(body, strict=True)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.to_dict() == {
        "content": [
            {
                "token": "H",
                "bytes": [72],
                "logprob": -0.5,
                "top_logprobs": [
                    {"token": "H", "bytes": [72], "logprob": -0.5},
                    {"token": "\N{REPLACEMENT CHARACTER}", "bytes": [226], "logprob": -9999.0},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_completion_answer_is_openais_text_completion() -> None:
    body = CompletionReply(terms()).whole([TextDelta("Hi", ())], SUMMARY)
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == USAGE
    Completion.model_validate(body, strict=True)


@pytest.mark.parametrize("streamed", [True, False])
def test_completion_logprobs_count_characters_not_bytes(streamed: bool) -> None:
    deltas = [
        TextDelta("", (token(b"\xc3"),)),
        TextDelta("é", (token(b"\xa9"),)),
        TextDelta("a", (token(b"a", -0.5, TokenLogprob(ord("b"), -0.25)),)),
        TextDelta("b", (token(b"b"),)),
    ]
    reply = CompletionReply(terms(logprobs=True))
    bodies: list[Any] = [reply.whole(deltas, SUMMARY)]
    if streamed:
        bodies = chunks_of(CompletionReply(terms(logprobs=True)), *deltas)[:-1]
    parts = [body["choices"][0]["logprobs"] for body in bodies]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 0, 1, 2]
    assert [text for part in parts for text in part["tokens"]][2:] == ["a", "b"]
    tops = [top for part in parts for top in part["top_logprobs"]]
    assert tops[2:] == [{"b": -0.25, "a": -0.5}, {"b": -0.5}]


def test_a_token_without_the_logprob_asked_for_is_a_fault() -> None:
    with pytest.raises(InternalError, match="position 9"):
        ChatReply(terms(logprobs=True)).piece(TextDelta("H", (token(b"H", None),)))


def test_an_event_is_one_line_of_json_whatever_the_text() -> None:
    event = sse({"content": "two\nlines\r\n\N{LINE SEPARATOR} é"})
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    assert json.loads(event[6:])["content"] == "two\nlines\r\n\N{LINE SEPARATOR} é"
