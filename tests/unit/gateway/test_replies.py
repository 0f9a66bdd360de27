import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from meshnet.domain.errors import InternalError
from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.domain.sampling import TokenLogprob
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.gateway.chatreply import ChatReply
from meshnet.gateway.replies import CompletionReply, Reply, ReplyTerms, sse, usage_object
from meshnet.session.service import GenerationSummary, TextDelta
from meshnet.session.tools.parser import OutputTerms

SUMMARY = GenerationSummary(FinishReason.STOP, 5, 2, 0.1, 0.2, cached_tokens=4)
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def terms(*, logprobs: bool = False, include_usage: bool = False) -> ReplyTerms:
    return ReplyTerms("id-1", 1700000000, "m", ByteTokenizer(), logprobs, include_usage)


def token(text: bytes, logprob: float | None = -0.5, *others: TokenLogprob) -> GeneratedToken:
    return GeneratedToken(9, text[0], logprob, others)


def chunks_of(reply: Reply, *deltas: TextDelta) -> list[dict[str, Any]]:
    events: list[TextDelta | GenerationSummary] = [*deltas, SUMMARY]
    pieces = [chunk for event in events for chunk in reply.take(0, event)]
    return [*reply.opening(), *pieces, *reply.closing()]


def whole_of(reply: Reply, *deltas: TextDelta) -> dict[str, Any]:
    for delta in deltas:
        reply.take(0, delta)
    reply.take(0, SUMMARY)
    return reply.whole()


def chat_reply(terms: ReplyTerms) -> ChatReply:
    return ChatReply(terms, OutputTerms())


def test_a_chat_answer_is_openais_chat_completion() -> None:
    deltas = [TextDelta("Hel", ()), TextDelta("lo", ())]
    body = whole_of(chat_reply(terms()), *deltas)
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
    chunks = chunks_of(chat_reply(terms()), TextDelta("Hi", ()))
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


@pytest.mark.parametrize("kind", [chat_reply, CompletionReply])
def test_usage_comes_in_a_last_chunk_without_choices_if_asked_for(
    kind: Callable[[ReplyTerms], Reply],
) -> None:
    *others, last = chunks_of(kind(terms(include_usage=True)), TextDelta("Hi", ()))
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert all(chunk["usage"] is None for chunk in others)


@pytest.mark.parametrize("kind", [chat_reply, CompletionReply])
def test_a_delta_without_text_makes_a_chunk_only_for_its_logprobs(
    kind: Callable[[ReplyTerms], Reply],
) -> None:
    silent = TextDelta("", (token(b"H"),))
    assert kind(terms()).take(0, silent) == []
    assert len(kind(terms(logprobs=True)).take(0, silent)) == 1
    assert kind(terms(logprobs=True)).take(0, TextDelta("", ())) == []


def test_chat_logprobs_give_text_bytes_and_alternatives() -> None:
    chosen = token(b"H", -0.5, TokenLogprob(ord("H"), -0.5), TokenLogprob(0xE2, -math.inf))
    body = whole_of(chat_reply(terms(logprobs=True)), TextDelta("H", (chosen,)))
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
    body = whole_of(CompletionReply(terms()), TextDelta("Hi", ()))
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
    bodies: list[Any] = [whole_of(reply, *deltas)]
    if streamed:
        bodies = chunks_of(CompletionReply(terms(logprobs=True)), *deltas)[:-1]
    parts = [body["choices"][0]["logprobs"] for body in bodies]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 0, 1, 2]
    assert [text for part in parts for text in part["tokens"]][2:] == ["a", "b"]
    tops = [top for part in parts for top in part["top_logprobs"]]
    assert tops[2:] == [{"b": -0.25, "a": -0.5}, {"b": -0.5}]


def test_a_token_without_the_logprob_asked_for_is_a_fault() -> None:
    with pytest.raises(InternalError, match="position 9"):
        chat_reply(terms(logprobs=True)).take(0, TextDelta("H", (token(b"H", None),)))


def test_an_event_is_one_line_of_json_whatever_the_text() -> None:
    event = sse({"content": "two\nlines\r\n\N{LINE SEPARATOR} é"})
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    assert json.loads(event[6:])["content"] == "two\nlines\r\n\N{LINE SEPARATOR} é"


def test_a_prompt_counts_once_however_many_answers_it_has() -> None:
    summaries = [
        GenerationSummary(FinishReason.STOP, prompt, done, 0.1, 0.2, cached_tokens=cached)
        for prompt, done, cached in ((5, 1, 0), (5, 2, 4), (7, 3, 2), (7, 4, 6))
    ]
    assert usage_object(summaries, 2) == {
        "prompt_tokens": 12,
        "completion_tokens": 10,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_choices_are_told_by_their_index_in_whatever_order_they_come() -> None:
    reply = CompletionReply(replace(terms(), choices=2, n=2))
    told: list[Any] = [
        *reply.take(1, TextDelta("b", ())),
        *reply.take(0, TextDelta("a", ())),
        *reply.take(1, SUMMARY),
    ]
    before = reply.ended
    told += reply.take(0, replace(SUMMARY, finish_reason=FinishReason.LENGTH))
    assert (before, reply.ended) == (False, True)
    choices = [chunk["choices"][0] for chunk in told]
    assert [(it["index"], it["text"], it["finish_reason"]) for it in choices] == [
        (1, "b", None),
        (0, "a", None),
        (1, "", "stop"),
        (0, "", "length"),
    ]
    body: Any = reply.whole()
    assert [(it["index"], it["text"]) for it in body["choices"]] == [(0, "a"), (1, "b")]
    Completion.model_validate(body, strict=True)
