"""Events of generations as OpenAI's JSON objects; no I/O, no clock, no randomness."""

from __future__ import annotations

import abc
import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from meshnet.domain.errors import InternalError
from meshnet.domain.generation import GeneratedToken
from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.service import GenerationSummary, ModelService, TextDelta

JsonObject = dict[str, object]

DONE = b"data: [DONE]\n\n"
"""The last event of a stream that ended by itself."""

UNLIKELY = -9999.0
"""OpenAI's log-probability of a token that can't come; JSON has no minus infinity."""


def sse(payload: JsonObject) -> bytes:
    """One server-sent event."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def model_object(name: str, model: ModelService) -> JsonObject:
    """OpenAI's ``model`` object for a model by one of its names."""
    return {
        "id": name,
        "object": "model",
        "created": model.created_unix,
        "owned_by": "meshnet",
    }


def usage_object(summaries: Sequence[GenerationSummary], n: int = 1) -> JsonObject:
    """OpenAI's ``usage`` object for ``n`` choices a prompt; a prompt counts once."""
    prompt = sum(summary.prompt_tokens for summary in summaries[::n])
    completion = sum(summary.completion_tokens for summary in summaries)
    cached = sum(summary.cached_tokens for summary in summaries[::n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(frozen=True, slots=True)
class ReplyTerms:
    """What every object of one answer repeats, and what was asked to be in it."""

    reply_id: str
    created_unix: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    include_usage: bool = False
    """Whether a stream ends with a chunk that holds the usage."""
    choices: int = 1
    n: int = 1
    """Choices a prompt."""


class Reply(abc.ABC):
    """The shape of one answer: a stream of payloads, or one object. One object serves one answer.

    ``take`` is told every event of every choice, in order; ``whole`` then has them all.
    """

    def __init__(self, terms: ReplyTerms) -> None:
        self._terms = terms
        self._summaries: dict[int, GenerationSummary] = {}

    @property
    def reply_id(self) -> str:
        """The answer's id."""
        return self._terms.reply_id

    @property
    def ended(self) -> bool:
        """Whether every choice has its summary."""
        return len(self._summaries) == self._terms.choices

    @property
    def summaries(self) -> list[GenerationSummary]:
        """The summaries of all choices, in their order."""
        return [self._summaries[index] for index in range(self._terms.choices)]

    def take(self, index: int, event: TextDelta | GenerationSummary) -> list[JsonObject]:
        """Payloads for an event of choice ``index``; none if there is nothing to tell yet."""
        if isinstance(event, TextDelta):
            return self._piece(index, event)
        self._summaries[index] = event
        return self._end(index, event)

    def frame(self, payload: JsonObject) -> bytes:
        """A payload as it is sent in a stream."""
        return sse(payload)

    def error_payload(self, error: JsonObject) -> JsonObject:
        """What a stream that fails tells last, from the body of an answer that fails."""
        return error

    end: ClassVar[bytes] = DONE
    """What a stream that ended by itself is closed with."""

    @abc.abstractmethod
    def opening(self) -> list[JsonObject]:
        """Payloads that come before the first text."""

    @abc.abstractmethod
    def closing(self) -> list[JsonObject]:
        """Payloads that come after the last choice's end."""

    @abc.abstractmethod
    def whole(self) -> JsonObject:
        """The whole answer as one object."""

    @abc.abstractmethod
    def _piece(self, index: int, delta: TextDelta) -> list[JsonObject]:
        """Payloads for more text."""

    @abc.abstractmethod
    def _end(self, index: int, summary: GenerationSummary) -> list[JsonObject]:
        """Payloads for the end of a choice."""


class ChoicesReply(Reply):
    """What the answers with numbered choices have in common."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def opening(self) -> list[JsonObject]:
        """Nothing."""
        return []

    def closing(self) -> list[JsonObject]:
        """The chunk with the usage, if it was asked for."""
        if not self._terms.include_usage:
            return []
        return [self._object(self.chunk_kind, []) | {"usage": self._usage()}]

    def whole(self) -> JsonObject:
        """The whole answer as one object."""
        choices = [self._choice(index) for index in range(self._terms.choices)]
        return self._object(self.whole_kind, choices) | {"usage": self._usage()}

    @abc.abstractmethod
    def _choice(self, index: int) -> JsonObject:
        """A whole choice."""

    def _usage(self) -> JsonObject:
        return usage_object(self.summaries, self._terms.n)

    def _chunk(
        self,
        index: int,
        addition: Mapping[str, object],
        *,
        logprobs: Mapping[str, object] | None = None,
        finish_reason: str | None = None,
    ) -> JsonObject:
        choice = {"index": index, **addition, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = self._object(self.chunk_kind, [choice])
        return chunk | {"usage": None} if self._terms.include_usage else chunk

    def _object(self, kind: str, choices: Sequence[JsonObject]) -> JsonObject:
        return {
            "id": self._terms.reply_id,
            "object": kind,
            "created": self._terms.created_unix,
            "model": self._terms.model,
            "choices": choices,
        }


class CompletionReply(ChoicesReply):
    """``text_completion``, streamed or not."""

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, terms: ReplyTerms) -> None:
        super().__init__(terms)
        self._state = [_Completion(terms.tokenizer) for _ in range(terms.choices)]

    def _piece(self, index: int, delta: TextDelta) -> list[JsonObject]:
        state = self._state[index]
        state.texts.append(delta.text)
        logprobs = None
        if self._terms.logprobs and delta.tokens:
            logprobs = state.logprobs(delta.tokens)
            state.told.append(logprobs)
        if not delta.text and logprobs is None:
            return []
        return [self._chunk(index, {"text": delta.text}, logprobs=logprobs)]

    def _end(self, index: int, summary: GenerationSummary) -> list[JsonObject]:
        return [self._chunk(index, {"text": ""}, finish_reason=summary.finish_reason.value)]

    def _choice(self, index: int) -> JsonObject:
        state = self._state[index]
        return {
            "index": index,
            "text": "".join(state.texts),
            "logprobs": _joined(state.told) if self._terms.logprobs else None,
            "finish_reason": self._summaries[index].finish_reason.value,
        }


@dataclass(slots=True)
class _Completion:
    """One choice so far; it counts characters."""

    tokenizer: Tokenizer
    texts: list[str] = field(default_factory=list)
    told: list[dict[str, list[object]]] = field(default_factory=list)
    _characters: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def logprobs(self, tokens: Sequence[GeneratedToken]) -> dict[str, list[object]]:
        """The ``logprobs`` member for these tokens."""
        return {
            "tokens": [decoded(self._bytes(token.token_id)) for token in tokens],
            "token_logprobs": [max(logprob_of(token), UNLIKELY) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [self._offset(token) for token in tokens],
        }

    def _alternatives(self, token: GeneratedToken) -> dict[str, float]:
        """The most likely tokens and the chosen one; of two with the same text, the likelier."""
        found: dict[str, float] = {}
        others = [(other.token_id, other.logprob) for other in token.top_logprobs]
        for token_id, logprob in [*others, (token.token_id, logprob_of(token))]:
            found.setdefault(decoded(self._bytes(token_id)), max(logprob, UNLIKELY))
        return found

    def _offset(self, token: GeneratedToken) -> int:
        """Where the token's text begins, in characters of the answer; also counts the token."""
        offset = self._characters
        self._characters += len(self._decoder.decode(self._bytes(token.token_id)))
        return offset

    def _bytes(self, token_id: int) -> bytes:
        return self.tokenizer.piece(token_id, special=True)


def _joined(parts: Sequence[dict[str, list[object]]]) -> JsonObject:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for part in parts for item in part[name]] for name in names}


def logprob_of(token: GeneratedToken) -> float:
    """The token's log-probability; raises :class:`InternalError` if it came without."""
    if token.logprob is None:
        raise InternalError(
            f"the token at position {token.position} came without the log-probability asked for"
        )
    return token.logprob


def decoded(piece: bytes) -> str:
    """A token's text; bytes that are no characters become U+FFFD."""
    return piece.decode("utf-8", "replace")
