"""An answer as OpenAI's ``response`` object, whole or as the events in which it comes about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from meshnet.domain.generation import FinishReason
from meshnet.gateway.chatreply import Turn, call_id
from meshnet.gateway.replies import JsonObject, Reply, ReplyTerms, sse
from meshnet.session.service import GenerationSummary, TextDelta
from meshnet.session.tools.parser import OutputTerms
from meshnet.session.tools.parts import Part, Reasoning, Text, ToolCall

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"


class ResponseReply(Reply):
    """Output items in the order in which the model wrote them: reasoning, messages, calls."""

    end = b""

    def __init__(self, terms: ReplyTerms, output: OutputTerms, echo: Mapping[str, object]) -> None:
        super().__init__(terms)
        self._echo = echo
        self._parser = output.parser()
        self._turn = Turn(self._parser)
        self._items: list[JsonObject] = []
        self._open: type[Text] | type[Reasoning] | None = None
        """What the last item is that still grows."""
        self._grown = ""
        self._calls = 0
        self._reasoning_tokens = 0
        self._sequence = 0

    def frame(self, payload: JsonObject) -> bytes:
        """A payload with its type as the event's name."""
        return f"event: {payload['type']}\n".encode() + sse(payload)

    def error_payload(self, error: JsonObject) -> JsonObject:
        """OpenAI's ``error`` event."""
        members = error["error"]
        told = members if isinstance(members, dict) else {}
        return self._event("error", {name: told.get(name) for name in ("code", "message", "param")})

    def opening(self) -> list[JsonObject]:
        """The response before its first text."""
        return [
            self._event(f"response.{kind}", {"response": self._response(IN_PROGRESS)})
            for kind in ("created", IN_PROGRESS)
        ]

    def closing(self) -> list[JsonObject]:
        """The whole response."""
        status = self._status()
        return [self._event(f"response.{status}", {"response": self._response(status)})]

    def whole(self) -> JsonObject:
        """The whole response."""
        return self._response(self._status())

    def _piece(self, index: int, delta: TextDelta) -> list[JsonObject]:
        if self._parser.thinking:
            self._reasoning_tokens += len(delta.tokens)
        return self._tell(self._turn.feed(delta.text))

    def _end(self, index: int, summary: GenerationSummary) -> list[JsonObject]:
        told = self._tell(self._turn.finish())
        return told + self._close(self._status())

    def _status(self) -> str:
        cut_off = self.summaries[0].finish_reason is FinishReason.LENGTH
        return INCOMPLETE if cut_off else COMPLETED

    def _tell(self, parts: Sequence[Part]) -> list[JsonObject]:
        told: list[JsonObject] = []
        for part in parts:
            if isinstance(part, ToolCall):
                told += self._close(COMPLETED) + self._call(part)
                continue
            if self._open is not type(part):
                told += self._close(COMPLETED) + self._begin(type(part))
            self._grown += part.text
            where = {"content_index": 0, "delta": part.text}
            if isinstance(part, Text):
                told.append(
                    self._item_event("response.output_text.delta", where | {"logprobs": []})
                )
            else:
                told.append(self._item_event("response.reasoning_text.delta", where))
        return told

    def _begin(self, kind: type[Text] | type[Reasoning]) -> list[JsonObject]:
        self._open, self._grown = kind, ""
        item = self._grown_item(IN_PROGRESS)
        self._items.append(item)
        begun = [
            self._event(
                "response.output_item.added", self._place() | {"item": item | {"content": []}}
            )
        ]
        if kind is Text:
            part = {"content_index": 0, "part": _text_part("")}
            begun.append(self._item_event("response.content_part.added", part))
        return begun

    def _close(self, status: str) -> list[JsonObject]:
        """The end of the item that grew, if there is one."""
        if self._open is None:
            return []
        text = {"content_index": 0, "text": self._grown}
        if self._open is Text:
            part = {"content_index": 0, "part": _text_part(self._grown)}
            told = [
                self._item_event("response.output_text.done", text | {"logprobs": []}),
                self._item_event("response.content_part.done", part),
            ]
        else:
            told = [self._item_event("response.reasoning_text.done", text)]
        item = self._items[-1] = self._grown_item(status) | {"id": self._items[-1]["id"]}
        self._open = None
        return [*told, self._event("response.output_item.done", self._place() | {"item": item})]

    def _call(self, call: ToolCall) -> list[JsonObject]:
        item: JsonObject = {
            "type": "function_call",
            "id": self._id("fc"),
            "call_id": call_id(self.reply_id, 0, self._calls),
            "name": call.name,
            "arguments": call.arguments,
            "status": COMPLETED,
        }
        self._calls += 1
        self._items.append(item)
        begun = item | {"arguments": "", "status": IN_PROGRESS}
        arguments = {"arguments": call.arguments, "name": call.name}
        kind = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", self._place() | {"item": begun}),
            self._item_event(f"{kind}.delta", {"delta": call.arguments}),
            self._item_event(f"{kind}.done", arguments),
            self._event("response.output_item.done", self._place() | {"item": item}),
        ]

    def _grown_item(self, status: str) -> JsonObject:
        if self._open is Text:
            return {
                "type": "message",
                "id": self._id("msg"),
                "role": "assistant",
                "content": [_text_part(self._grown)],
                "status": status,
            }
        return {
            "type": "reasoning",
            "id": self._id("rs"),
            "summary": [],
            "content": [{"type": "reasoning_text", "text": self._grown}],
            "status": status,
        }

    def _id(self, prefix: str) -> str:
        seed = f"{self.reply_id}/{len(self._items)}"
        return f"{prefix}_{hashlib.sha256(seed.encode()).hexdigest()[:24]}"

    def _place(self) -> JsonObject:
        return {"output_index": len(self._items) - 1}

    def _item_event(self, kind: str, members: Mapping[str, object]) -> JsonObject:
        item_id = self._items[-1]["id"]
        return self._event(kind, {"item_id": item_id, **self._place(), **members})

    def _event(self, kind: str, members: Mapping[str, object]) -> JsonObject:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **members}

    def _response(self, status: str) -> JsonObject:
        over = status != IN_PROGRESS
        return {
            "id": self.reply_id,
            "object": "response",
            "created_at": self._terms.created_unix,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": self._terms.model,
            "output": list(self._items) if over else [],
            "usage": self._usage() if over else None,
            **self._echo,
        }

    def _usage(self) -> JsonObject:
        (summary,) = self.summaries
        return {
            "input_tokens": summary.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": summary.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": summary.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        }


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
