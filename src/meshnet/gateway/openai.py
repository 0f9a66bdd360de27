"""Where a token's path begins: the body of an HTTP request becomes a domain request.

Everything here is a pure function of the body, the models and a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshnet.domain.errors import InvalidArgumentError, ModelNotFoundError
from meshnet.domain.sampling import SamplingParams
from meshnet.gateway.formats import ToolChoice, chat_format, constrained, tool_choice
from meshnet.gateway.schema import (
    MAX_PROMPTS,
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETION,
    REFUSED_IN_MESSAGE,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    SamplingBody,
    parse,
    refuse,
)
from meshnet.gateway.tooluse import (
    TemplateTool,
    earlier_calls,
    offered,
    output_terms,
    shown_tokens,
    thinking,
)
from meshnet.session.service import ModelService, TextRequest
from meshnet.session.tools.parser import OutputTerms

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for ``/v1/completions``; a chat answer has no limit unless it is given one."""

Models = Mapping[str, ModelService]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request gets that doesn't say."""

    seed: int
    """A fresh random number, 64 bits, so that two requests without a seed differ."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request in the domain's words, and how it wants the answer."""

    model: ModelService
    requests: tuple[TextRequest, ...]
    """One a choice of the answer, in its order: first all of the first prompt."""
    n: int
    """Choices a prompt."""
    stream: bool
    include_usage: bool
    output: OutputTerms = field(default_factory=OutputTerms)
    """What the text is taken apart into."""
    echo: Mapping[str, object] = field(default_factory=dict)
    """Parameters that the answer repeats."""


def by_name(models: Sequence[ModelService], aliases: Sequence[tuple[str, str]] = ()) -> Models:
    """The models by their names and aliases, these last.

    Raises :class:`InvalidArgumentError` for no models, two with one name, or an alias that is taken
    or stands for none of them.
    """
    named = {model.name: model for model in models}
    own = own_names([model.name for model in models], aliases)
    return {name: named[its_own] for name, its_own in own.items()}


def own_names(names: Sequence[str], aliases: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Each model's own name by all its names; raises as :func:`by_name` does."""
    found = {name: name for name in names}
    if not names or len(found) != len(names):
        raise InvalidArgumentError("models", "at least one is needed, each with its own name")
    for alias, name in aliases:
        if not alias or alias in found:
            raise InvalidArgumentError("alias", f"{alias!r} is empty or the name of another model")
        if name not in names:
            raise InvalidArgumentError(
                "alias",
                f"{alias!r} stands for {name!r}, which isn't among {', '.join(map(repr, names))}",
            )
        found[alias] = name
    return found


def model_named(models: Models, name: str) -> ModelService:
    """The model of that name; raises :class:`ModelNotFoundError`."""
    if name not in models:
        raise ModelNotFoundError(
            f"there is no model {name[:100]!r} here; there is {', '.join(map(repr, models))}"
        )
    return models[name]


def read_chat(body: bytes, models: Models, defaults: Defaults) -> Call:
    """Read the body of ``POST /v1/chat/completions``.

    Raises :class:`InputError` or one of its kinds for anything that can't be done as asked.
    """
    asked = parse(ChatBody, body)
    refuse(asked, REFUSED_IN_CHAT)
    for index, message in enumerate(asked.messages):
        refuse(message, REFUSED_IN_MESSAGE, where=f"messages[{index}].")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise InvalidArgumentError("top_logprobs", "it needs logprobs to be true")
    model = model_named(models, asked.model)
    functions = [tool.function for tool in asked.tools or ()]
    choice = tool_choice(asked.tool_choice, functions)
    tools = offered(functions, choice)
    turns = [_template_message(index, item) for index, item in enumerate(asked.messages)]
    request = TextRequest(
        prompt=(),
        sampling=sampling_of(
            asked, model, defaults, logprobs=bool(asked.logprobs), top=asked.top_logprobs or 0
        ),
        max_new_tokens=_chat_limit(asked),
        stop=asked.stop,
        timeout_seconds=defaults.timeout_seconds,
    )
    output = output_terms(model, tools, single_call=asked.parallel_tool_calls is False)
    request, output = prompted(model, turns, tools, request, output)
    wanted = chat_format(asked.response_format)
    fields = [f"tools[{index}].function.parameters" for index in range(len(functions))]
    request = constrained(model, request, output, wanted, choice, fields)
    return replace(_call(asked, model, [request]), output=output)


def prompted(
    model: ModelService,
    turns: list[dict[str, object]],
    tools: list[TemplateTool],
    request: TextRequest,
    output: OutputTerms,
) -> tuple[TextRequest, OutputTerms]:
    """The request with the prompt of a conversation, and what its answer begins with."""
    prompt = model.prompt_from_messages(turns, tools or None)
    return (
        replace(request, prompt=prompt, shown_tokens=shown_tokens(model, output)),
        replace(output, thinking=thinking(model, prompt, output.form)),
    )


def read_completion(body: bytes, models: Models, defaults: Defaults) -> Call:
    """Read the body of ``POST /v1/completions``; raises as :func:`read_chat` does."""
    asked = parse(CompletionBody, body)
    refuse(asked, REFUSED_IN_COMPLETION)
    model = model_named(models, asked.model)
    logprobs = asked.logprobs is not None
    limit = COMPLETION_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    shared = TextRequest(
        prompt=(),
        sampling=sampling_of(asked, model, defaults, logprobs=logprobs, top=asked.logprobs or 0),
        max_new_tokens=positive("max_tokens", limit),
        stop=asked.stop,
        timeout_seconds=defaults.timeout_seconds,
    )
    shared = constrained(model, shared, OutputTerms(), None, ToolChoice(), ())
    prompts = [_plain_prompt(prompt, model) for prompt in asked.prompt]
    return _call(asked, model, [replace(shared, prompt=prompt) for prompt in prompts])


def _call(asked: GenerationBody, model: ModelService, requests: list[TextRequest]) -> Call:
    if not all(request.prompt for request in requests):
        raise InvalidArgumentError("prompt", "it has no tokens; at least one is needed")
    if asked.stream_options is not None and not asked.stream:
        raise InvalidArgumentError("stream_options", "it needs stream to be true")
    n = asked.n or 1
    if n * len(requests) > MAX_PROMPTS:
        raise InvalidArgumentError(
            "n", f"{n} for each of {len(requests)} prompts is more than {MAX_PROMPTS} answers"
        )
    return Call(
        model,
        tuple(_choice(request, index) for request in requests for index in range(n)),
        n,
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
    )


def _choice(request: TextRequest, index: int) -> TextRequest:
    seed = choice_seed(request.sampling.seed, index)
    return replace(request, sampling=replace(request.sampling, seed=seed))


def choice_seed(seed: int, index: int) -> int:
    """The seed of a request's choice ``index``; the first has the request's own.

    The others' are the first eight bytes of a SHA-256 of both numbers, so that a request with a
    seed can be repeated, and choices of neighbouring seeds don't coincide.
    """
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _plain_prompt(prompt: str | tuple[int, ...], model: ModelService) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return model.prompt_from_text(prompt)
    require_known("prompt", prompt, model)
    return prompt


def sampling_of(
    asked: SamplingBody,
    model: ModelService,
    defaults: Defaults,
    *,
    logprobs: bool = False,
    top: int = 0,
) -> SamplingParams:
    """How tokens are to be chosen; raises :class:`InvalidArgumentError` naming the parameter."""
    given = asked.model_dump(
        include={
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repeat_penalty",
        },
        exclude_none=True,
    )
    if given.get("top_p") == 0:
        # OpenAI allows 0, which leaves the most likely token alone.
        given |= {"top_p": 1.0, "top_k": 1}
    bias = asked.logit_bias or {}
    require_known("logit_bias", bias, model)
    seed = defaults.seed if asked.seed is None else asked.seed
    return SamplingParams(
        **given,
        seed=seed % 2**64,
        logit_bias=bias,
        grammar=asked.grammar or "",
        logprobs=logprobs,
        top_logprobs=top,
    )


def _template_message(index: int, message: Message) -> dict[str, object]:
    """A message as chat templates know it; they have no developer, whose place the system takes."""
    role = "system" if message.role == "developer" else message.role
    names = {"content", "name", "tool_call_id", "reasoning_content"}
    turn = {"role": role} | message.model_dump(include=names, exclude_none=True)
    if message.tool_calls:
        where = f"messages[{index}].tool_calls"
        if role != "assistant":
            raise InvalidArgumentError(where, f"only an assistant calls tools, no {role}")
        turn["tool_calls"] = earlier_calls(message.tool_calls, where)
    return turn


def _chat_limit(asked: ChatBody) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidArgumentError(
            "max_tokens", f"{old} contradicts max_completion_tokens, which is {new}; send one"
        )
    if new is not None:
        return positive("max_completion_tokens", new)
    return None if old is None else positive("max_tokens", old)


def positive(name: str, limit: int) -> int:
    """The limit; raises :class:`InvalidArgumentError` if it is less than 1."""
    if limit < 1:
        raise InvalidArgumentError(name, f"{limit} must be at least 1")
    return limit


def require_known(name: str, token_ids: Iterable[int], model: ModelService) -> None:
    """Raise :class:`InvalidArgumentError` for ids that the model's vocabulary doesn't have."""
    size = model.tokenizer.n_vocab
    for token in token_ids:
        if not 0 <= token < size:
            raise InvalidArgumentError(
                name, f"the vocabulary has no token {token}, only 0 to {size - 1}"
            )
