"""A conversation's next turn as OpenAI's ``chat.completion``, streamed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.engine.tokenizer import Tokenizer
from meshnet.gateway.replies import (
    UNLIKELY,
    ChoicesReply,
    JsonObject,
    ReplyTerms,
    decoded,
    logprob_of,
)
from meshnet.session.service import GenerationSummary, TextDelta
from meshnet.session.tools.parser import OutputParser, OutputTerms
from meshnet.session.tools.parts import Part, Reasoning, Text, ToolCall

TOOL_CALLS = "tool_calls"


class ChatReply(ChoicesReply):
    """``chat.completion`` and ``chat.completion.chunk``.

    Text, reasoning and calls come apart; the reason of a choice with calls is ``tool_calls``, or
    ``length`` where it was cut off.
    """

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, terms: ReplyTerms, output: OutputTerms) -> None:
        super().__init__(terms)
        self._turns = [Turn(output.parser()) for _ in range(terms.choices)]

    def opening(self) -> list[JsonObject]:
        """The chunks that name the role."""
        role = {"delta": {"role": "assistant", "content": "", "refusal": None}}
        return [self._chunk(index, role) for index in range(self._terms.choices)]

    def _piece(self, index: int, delta: TextDelta) -> list[JsonObject]:
        turn = self._turns[index]
        additions = self._additions(index, turn.feed(delta.text))
        logprobs = None
        if self._terms.logprobs and delta.tokens:
            entries = [content_entry(token, self._terms.tokenizer) for token in delta.tokens]
            turn.logprobs.extend(entries)
            logprobs = _logprobs(entries)
            additions = additions or [{"delta": {"content": ""}}]
        chunks = [self._chunk(index, addition) for addition in additions[1:]]
        first = [self._chunk(index, each, logprobs=logprobs) for each in additions[:1]]
        return first + chunks

    def _end(self, index: int, summary: GenerationSummary) -> list[JsonObject]:
        rest = self._additions(index, self._turns[index].finish())
        reason = self._turns[index].reason(summary)
        last = self._chunk(index, {"delta": {}}, finish_reason=reason)
        return [*(self._chunk(index, each) for each in rest), last]

    def _choice(self, index: int) -> JsonObject:
        turn = self._turns[index]
        message: JsonObject = {
            "role": "assistant",
            "content": None if turn.calls and not turn.text else turn.text,
            "refusal": None,
            "annotations": [],
        }
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(index, number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(turn.calls)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(turn.logprobs) if self._terms.logprobs else None,
            "finish_reason": turn.reason(self._summaries[index]),
        }

    def _additions(self, index: int, parts: Sequence[Part]) -> list[JsonObject]:
        deltas: list[JsonObject] = []
        number = len(self._turns[index].calls) - sum(isinstance(part, ToolCall) for part in parts)
        for part in parts:
            if isinstance(part, Text):
                deltas.append({"content": part.text})
            elif isinstance(part, Reasoning):
                deltas.append({"reasoning_content": part.text})
            else:
                deltas += _call_deltas(self._call_id(index, number), number, part)
                number += 1
        return [{"delta": delta} for delta in deltas]

    def _call_id(self, index: int, number: int) -> str:
        return call_id(self._terms.reply_id, index, number)


class Turn:
    """One choice so far, taken apart."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self.text = ""
        self.reasoning = ""
        self.calls: list[ToolCall] = []
        self.logprobs: list[JsonObject] = []

    def feed(self, text: str) -> list[Part]:
        """The parts that became certain with more text."""
        return self._keep(self._parser.feed(text))

    def finish(self) -> list[Part]:
        """The parts that were held back, now that no text follows."""
        return self._keep(self._parser.finish())

    def reason(self, summary: GenerationSummary) -> str:
        """OpenAI's ``finish_reason``."""
        if summary.finish_reason is FinishReason.STOP and self.calls:
            return TOOL_CALLS
        return summary.finish_reason.value

    def _keep(self, parts: list[Part]) -> list[Part]:
        for part in parts:
            if isinstance(part, Text):
                self.text += part.text
            elif isinstance(part, Reasoning):
                self.reasoning += part.text
            else:
                self.calls.append(part)
        return parts


def call_id(reply_id: str, choice: int, number: int) -> str:
    """The id of a call, unlike that of any other call of any answer.

    Nine letters and digits, since some models' templates refuse ids of another form.
    """
    return hashlib.sha256(f"{reply_id}/{choice}/{number}".encode()).hexdigest()[:9]


def content_entry(token: GeneratedToken, tokenizer: Tokenizer) -> JsonObject:
    """One token of ``logprobs.content``."""

    def entry(token_id: int, logprob: float) -> JsonObject:
        piece = tokenizer.piece(token_id, special=True)
        text = decoded(piece)
        return {"token": text, "bytes": list(piece), "logprob": max(logprob, UNLIKELY)}

    top = [entry(other.token_id, other.logprob) for other in token.top_logprobs]
    return {**entry(token.token_id, logprob_of(token)), "top_logprobs": top}


def _logprobs(entries: list[JsonObject]) -> JsonObject:
    return {"content": entries, "refusal": None}


def _call_deltas(name: str, number: int, call: ToolCall) -> list[JsonObject]:
    head = {
        "index": number,
        "id": name,
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    rest = {"index": number, "function": {"arguments": call.arguments}}
    return [{"tool_calls": [head]}, {"tool_calls": [rest]}]
