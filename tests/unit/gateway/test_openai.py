import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InputError, InvalidArgumentError, ModelNotFoundError
from meshnet.domain.sampling import MAX_GRAMMAR_BYTES, SamplingParams
from meshnet.gateway.openai import (
    COMPLETION_MAX_TOKENS,
    Call,
    Defaults,
    choice_seed,
    read_chat,
    read_completion,
)
from meshnet.gateway.schema import REFUSED_IN_CHAT, ChatBody, CompletionBody
from tests.support.scripted_model import ScriptedModel

DEFAULTS = Defaults(seed=7, timeout_seconds=60.0)
HELLO = [{"role": "user", "content": "hello"}]


TOOL = {"type": "function", "function": {"name": "f"}}
INFINITE = {"type": "object", "properties": {"a": {"maximum": math.inf}}}


def calling(arguments: str, role: str = "assistant") -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call-1", "type": "function", "function": function}
    return {"role": role, "content": None, "tool_calls": [call]}


def chat(served: ScriptedModel | None = None, **parameters: object) -> Call:
    served = served or ScriptedModel()
    body = {"model": served.name, "messages": HELLO} | parameters
    return read_chat(json.dumps(body).encode(), {served.name: served}, DEFAULTS)


def completion(**parameters: object) -> Call:
    model = ScriptedModel()
    body = {"model": model.name, "prompt": "hello"} | parameters
    return read_completion(json.dumps(body).encode(), {model.name: model}, DEFAULTS)


def field_of_refusal(read: Any, **parameters: object) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        read(**parameters)
    assert caught.value.message.startswith(caught.value.details["field"])
    return caught.value.details["field"]


def test_a_bare_chat_request_samples_from_the_plain_distribution_without_a_limit() -> None:
    call = chat()
    assert call.requests[0].sampling == SamplingParams(seed=7)
    assert call.requests[0].max_new_tokens is None
    assert call.requests[0].stop == ()
    assert call.requests[0].timeout_seconds == 60.0
    assert bytes(call.requests[0].prompt) == b"user: hello\n"
    assert (call.stream, call.include_usage) == (False, False)


def test_every_sampling_parameter_arrives() -> None:
    call = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.05,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repeat_penalty=1.1,
        logit_bias={"65": -100, "66": 5},
        logprobs=True,
        top_logprobs=3,
        seed=123,
        max_completion_tokens=9,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
    )
    assert call.requests[0].sampling == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.05,
        presence_penalty=1.0,
        frequency_penalty=-1.5,
        repeat_penalty=1.1,
        seed=123,
        logit_bias={65: -100.0, 66: 5.0},
        logprobs=True,
        top_logprobs=3,
    )
    assert call.requests[0].max_new_tokens == 9
    assert call.requests[0].stop == ("a", "b")
    assert (call.stream, call.include_usage) == (True, True)


def test_null_is_the_same_as_leaving_a_parameter_out() -> None:
    names = set(ChatBody.model_fields) | set(REFUSED_IN_CHAT) | {"user", "metadata"}
    names -= {"model", "messages"}
    assert chat(**dict.fromkeys(names)).requests == chat().requests


def test_values_that_change_nothing_and_unknown_parameters_are_let_through() -> None:
    call = chat(
        n=1,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        service_tier="auto",
        user="someone",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        some_other_servers_extension={"x": [1]},
    )
    assert call.requests == chat().requests


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": INFINITE}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
            "tools[0].function.strict",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'},
            "grammar",
        ),
        ({"grammar": "a" * (MAX_GRAMMAR_BYTES + 1)}, "grammar"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.0}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"top_k": int("9" * 400)}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"logit_bias": {"65": 101}}, "logit_bias.65"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"logit_bias": [65]}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "function", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": [calling("{", role="user")]}, "messages[0].tool_calls"),
        *(
            (
                {"messages": [*HELLO, calling(arguments)]},
                "messages[1].tool_calls[0].function.arguments",
            )
            for arguments in ("{", "[]", "NaN", '{"a": NaN}', '{"a": -1e999}', "[" * 9999)
        ),
    ],
)
def test_a_chat_request_that_cant_be_done_as_asked_is_refused_by_name(
    parameters: dict[str, object], field: str
) -> None:
    assert field_of_refusal(chat, **parameters) == field


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["one", ""]}, "prompt"),
        ({"prompt": ["one", 2]}, "prompt"),
        ({"prompt": ["one"] * 65}, "prompt"),
        ({"prompt": ["one"] * 5, "n": 13}, "n"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [[["x"]]]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "after"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_a_completion_request_that_cant_be_done_as_asked_is_refused_by_name(
    parameters: dict[str, object], field: str
) -> None:
    assert field_of_refusal(completion, **parameters) == field


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
def test_a_prompt_comes_as_text_or_token_ids_alone_or_in_a_list(prompt: object) -> None:
    assert completion(prompt=prompt).requests[0].prompt == (104, 105)


def test_several_prompts_have_n_choices_each_in_their_order() -> None:
    call = completion(prompt=["one", [104, 105], "two"], n=2, seed=5)
    prompts = [bytes(request.prompt) for request in call.requests]
    assert prompts == [b"one", b"one", b"hi", b"hi", b"two", b"two"]
    seeds = [request.sampling.seed for request in call.requests]
    assert seeds == seeds[:2] * 3
    assert call.n == 2


@given(seed=st.integers(0, 2**64 - 1))
def test_choices_have_seeds_of_their_own_that_the_request_s_seed_decides(seed: int) -> None:
    seeds = [request.sampling.seed for request in chat(seed=seed, n=16).requests]
    assert seeds[0] == seed
    assert len(set(seeds)) == 16
    assert seeds == [choice_seed(seed, index) for index in range(16)]
    assert not set(seeds[1:]) & {choice_seed((seed + 1) % 2**64, index) for index in range(16)}


def test_completions_keep_openais_defaults() -> None:
    call = completion()
    assert call.requests[0].max_new_tokens == COMPLETION_MAX_TOKENS
    assert not call.requests[0].sampling.logprobs
    assert completion(max_tokens=500).requests[0].max_new_tokens == 500


def test_completions_logprobs_zero_asks_for_the_chosen_token_alone() -> None:
    sampling = completion(logprobs=0).requests[0].sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 0)


def test_messages_reach_the_template_as_plain_text_turns() -> None:
    model = ScriptedModel()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat(
        model,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "ada"},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
            {"role": "tool", "content": "42", "tool_call_id": "call-1"},
        ],
    )
    assert model.conversations == [
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "one\ntwo", "name": "ada"},
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "42", "tool_call_id": "call-1"},
        ]
    ]


def test_a_negative_seed_is_taken_as_64_bits() -> None:
    assert chat(seed=-1).requests[0].sampling.seed == 2**64 - 1
    assert chat(seed=0).requests[0].sampling.seed == 0


def test_top_p_of_zero_leaves_the_most_likely_token() -> None:
    sampling = chat(top_p=0, top_k=50).requests[0].sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"'gpt-x'.*'scripted'"):
        completion(model="gpt-x")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 5000, b'"text"'])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="body") as caught:
        read_chat(body, {"scripted": ScriptedModel()}, DEFAULTS)
    assert "field" not in caught.value.details


TEXT = st.text('ab01\n"é', max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "n", "tools", "echo"} - {"model"})
)


@given(parameters=st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_object_is_a_request_or_an_input_error(parameters: dict[str, object]) -> None:
    for read, base in ((read_chat, {"messages": HELLO}), (read_completion, {"prompt": "hi"})):
        body = json.dumps({"model": "scripted"} | base | parameters).encode()
        try:
            call = read(body, {"scripted": ScriptedModel()}, DEFAULTS)
        except InputError as error:
            assert error.message
        else:
            assert all(request.prompt for request in call.requests)
