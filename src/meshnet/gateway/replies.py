"""Events of a generation as OpenAI's JSON objects; no I/O, no clock, no randomness."""

from __future__ import annotations

import abc
import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
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


def model_object(model: ModelService) -> JsonObject:
    """OpenAI's ``model`` object."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_unix,
        "owned_by": "meshnet",
    }


def usage_object(summary: GenerationSummary) -> JsonObject:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
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


class Reply(abc.ABC):
    """The shape of one answer: chunks if it is streamed, one object if not."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, terms: ReplyTerms) -> None:
        self._terms = terms

    def opening(self) -> list[JsonObject]:
        """Chunks that come before the first text."""
        return []

    def piece(self, delta: TextDelta) -> list[JsonObject]:
        """Chunks for a delta; none if there is nothing to tell yet."""
        logprobs = self._logprobs(delta.tokens) if self._terms.logprobs and delta.tokens else None
        if not delta.text and logprobs is None:
            return []
        return [self._chunk(self._addition(delta.text), logprobs=logprobs)]

    def closing(self, summary: GenerationSummary) -> list[JsonObject]:
        """The chunk with the reason, and the one with the usage if it was asked for."""
        last = self._chunk(self._addition(None), finish_reason=summary.finish_reason.value)
        if not self._terms.include_usage:
            return [last]
        usage = {"usage": usage_object(summary)}
        return [last, self._object(self.chunk_kind, []) | usage]

    def whole(self, deltas: Sequence[TextDelta], summary: GenerationSummary) -> JsonObject:
        """The whole answer as one object."""
        tokens = [token for delta in deltas for token in delta.tokens]
        choice = {
            "index": 0,
            **self._text("".join(delta.text for delta in deltas)),
            "logprobs": self._logprobs(tokens) if self._terms.logprobs else None,
            "finish_reason": summary.finish_reason.value,
        }
        return self._object(self.whole_kind, [choice]) | {"usage": usage_object(summary)}

    @abc.abstractmethod
    def _text(self, text: str) -> JsonObject:
        """The member of a choice that holds the whole text."""

    @abc.abstractmethod
    def _addition(self, text: str | None) -> JsonObject:
        """The member of a chunk's choice that adds to the text; None adds nothing any more."""

    @abc.abstractmethod
    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> JsonObject:
        """The ``logprobs`` member for these tokens."""

    def _chunk(
        self,
        addition: JsonObject,
        *,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
    ) -> JsonObject:
        choice = {"index": 0, **addition, "logprobs": logprobs, "finish_reason": finish_reason}
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

    def _bytes(self, token_id: int) -> bytes:
        return self._terms.tokenizer.piece(token_id, special=True)


class ChatReply(Reply):
    """``chat.completion`` and ``chat.completion.chunk``."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> list[JsonObject]:
        """The chunk that names the role."""
        return [self._chunk({"delta": {"role": "assistant", "content": "", "refusal": None}})]

    def _text(self, text: str) -> JsonObject:
        return {
            "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        }

    def _addition(self, text: str | None) -> JsonObject:
        return {"delta": {} if text is None else {"content": text}}

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> JsonObject:
        return {"content": [self._content_entry(token) for token in tokens], "refusal": None}

    def _content_entry(self, token: GeneratedToken) -> JsonObject:
        top = [self._entry(other.token_id, other.logprob) for other in token.top_logprobs]
        return {**self._entry(token.token_id, _logprob(token)), "top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> JsonObject:
        piece = self._bytes(token_id)
        return {"token": _decoded(piece), "bytes": list(piece), "logprob": max(logprob, UNLIKELY)}


class CompletionReply(Reply):
    """``text_completion``, streamed or not. One object serves one answer: it counts characters."""

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, terms: ReplyTerms) -> None:
        super().__init__(terms)
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def _text(self, text: str) -> JsonObject:
        return {"text": text}

    def _addition(self, text: str | None) -> JsonObject:
        return {"text": text or ""}

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> JsonObject:
        return {
            "tokens": [_decoded(self._bytes(token.token_id)) for token in tokens],
            "token_logprobs": [max(_logprob(token), UNLIKELY) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [self._offset(token) for token in tokens],
        }

    def _alternatives(self, token: GeneratedToken) -> dict[str, float]:
        """The most likely tokens and the chosen one; of two with the same text, the likelier."""
        found: dict[str, float] = {}
        others = [(other.token_id, other.logprob) for other in token.top_logprobs]
        for token_id, logprob in [*others, (token.token_id, _logprob(token))]:
            found.setdefault(_decoded(self._bytes(token_id)), max(logprob, UNLIKELY))
        return found

    def _offset(self, token: GeneratedToken) -> int:
        """Where the token's text begins, in characters of the answer; also counts the token."""
        offset = self._characters
        self._characters += len(self._decoder.decode(self._bytes(token.token_id)))
        return offset


def _logprob(token: GeneratedToken) -> float:
    if token.logprob is None:
        raise InternalError(
            f"the token at position {token.position} came without the log-probability asked for"
        )
    return token.logprob


def _decoded(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
