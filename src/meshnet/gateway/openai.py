"""Where a token's path begins: the body of an HTTP request becomes a domain request.

Everything here is a pure function of the body, the models and a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError, ModelNotFoundError
from meshnet.domain.sampling import SamplingParams
from meshnet.gateway.schema import (
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETION,
    REFUSED_IN_MESSAGE,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    parse,
    refuse,
)
from meshnet.session.service import ModelService, TextRequest

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
    request: TextRequest
    stream: bool
    include_usage: bool


def model_named(models: Models, name: str) -> ModelService:
    """The model of that name; raises :class:`ModelNotFoundError`."""
    if name not in models:
        raise ModelNotFoundError(
            f"there is no model {name!r} here; there is {', '.join(map(repr, models))}"
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
    top = asked.top_logprobs or 0
    request = TextRequest(
        prompt=model.prompt_from_messages([_template_message(item) for item in asked.messages]),
        sampling=_sampling(asked, model, defaults, logprobs=bool(asked.logprobs), top=top),
        max_new_tokens=_chat_limit(asked),
        stop=asked.stop,
        timeout_seconds=defaults.timeout_seconds,
    )
    return _call(asked, model, request)


def read_completion(body: bytes, models: Models, defaults: Defaults) -> Call:
    """Read the body of ``POST /v1/completions``; raises as :func:`read_chat` does."""
    asked = parse(CompletionBody, body)
    refuse(asked, REFUSED_IN_COMPLETION)
    model = model_named(models, asked.model)
    logprobs = asked.logprobs is not None
    limit = COMPLETION_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    request = TextRequest(
        prompt=_plain_prompt(asked.prompt, model),
        sampling=_sampling(asked, model, defaults, logprobs=logprobs, top=asked.logprobs or 0),
        max_new_tokens=_positive("max_tokens", limit),
        stop=asked.stop,
        timeout_seconds=defaults.timeout_seconds,
    )
    return _call(asked, model, request)


def _call(asked: GenerationBody, model: ModelService, request: TextRequest) -> Call:
    if not request.prompt:
        raise InvalidArgumentError("prompt", "it has no tokens; at least one is needed")
    if asked.stream_options is not None and not asked.stream:
        raise InvalidArgumentError("stream_options", "it needs stream to be true")
    usage = bool(asked.stream_options and asked.stream_options.include_usage)
    return Call(model, request, stream=bool(asked.stream), include_usage=usage)


def _plain_prompt(prompt: str | tuple[int, ...], model: ModelService) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return model.prompt_from_text(prompt)
    _require_known("prompt", prompt, model)
    return prompt


def _sampling(
    asked: GenerationBody, model: ModelService, defaults: Defaults, *, logprobs: bool, top: int
) -> SamplingParams:
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
    _require_known("logit_bias", bias, model)
    seed = defaults.seed if asked.seed is None else asked.seed
    return SamplingParams(
        **given,
        seed=seed % 2**64,
        logit_bias=bias,
        logprobs=logprobs,
        top_logprobs=top,
    )


def _template_message(message: Message) -> dict[str, object]:
    """A message as chat templates know it; they have no developer, whose place the system takes."""
    turn = message.model_dump(include={"content", "name", "tool_call_id"}, exclude_none=True)
    return {"role": "system" if message.role == "developer" else message.role, **turn}


def _chat_limit(asked: ChatBody) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidArgumentError(
            "max_tokens", f"{old} contradicts max_completion_tokens, which is {new}; send one"
        )
    if new is not None:
        return _positive("max_completion_tokens", new)
    return None if old is None else _positive("max_tokens", old)


def _positive(name: str, limit: int) -> int:
    if limit < 1:
        raise InvalidArgumentError(name, f"{limit} must be at least 1")
    return limit


def _require_known(name: str, token_ids: Iterable[int], model: ModelService) -> None:
    size = model.tokenizer.n_vocab
    for token in token_ids:
        if not 0 <= token < size:
            raise InvalidArgumentError(
                name, f"the vocabulary has no token {token}, only 0 to {size - 1}"
            )
