"""The OpenAPI document of what the gateway offers, made of the bodies that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic.json_schema import models_json_schema

from meshnet.gateway.responses import REFUSED_IN_RESPONSES, ResponsesBody
from meshnet.gateway.schema import (
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETION,
    Body,
    ChatBody,
    CompletionBody,
    Refused,
)
from meshnet.gateway.tokens import REFUSED_IN_TOKENIZE, DetokenizeBody, TokenizeBody

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: type[Body] | None = None
    refused: Refused | None = None
    """Parameters that are known and not offered."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters in the body, in the order of their definition."""
        return () if self.body is None else tuple(self.body.model_fields)


ENDPOINTS = (
    Endpoint(
        "POST", "/v1/chat/completions", "The next turn of a conversation", ChatBody, REFUSED_IN_CHAT
    ),
    Endpoint(
        "POST", "/v1/completions", "How a text goes on", CompletionBody, REFUSED_IN_COMPLETION
    ),
    Endpoint(
        "POST",
        "/v1/responses",
        "The next turn of a conversation, as items",
        ResponsesBody,
        REFUSED_IN_RESPONSES,
    ),
    Endpoint("DELETE", "/v1/requests/{name}", "Cancel a request that is being answered"),
    Endpoint("GET", "/v1/models", "The models that are served"),
    Endpoint("GET", "/v1/models/{name}", "One of them"),
    Endpoint("POST", "/tokenize", "From text to token ids", TokenizeBody, REFUSED_IN_TOKENIZE),
    Endpoint("POST", "/detokenize", "From token ids to text", DetokenizeBody),
    Endpoint("GET", "/health", "Whether every node is ready"),
    Endpoint("GET", "/metrics", "Figures for Prometheus"),
    Endpoint("GET", "/openapi.json", "This document"),
)
"""Everything that is offered."""

_ERROR: JsonObject = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def offered_paths() -> str:
    """What is offered, for a client who asked for something else."""
    return ", ".join(f"{each.method} {each.path}" for each in ENDPOINTS)


def document(version: str) -> JsonObject:
    """The OpenAPI 3.1 document."""
    bodies = [each.body for each in ENDPOINTS if each.body is not None]
    _, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, JsonObject] = {}
    for each in ENDPOINTS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Meshnet", "version": version},
        "paths": paths,
        "components": {"schemas": {**schemas.get("$defs", {}), "Error": _ERROR}},
    }


def _operation(each: Endpoint) -> JsonObject:
    operation: JsonObject = {
        "summary": each.summary,
        "responses": {
            "200": {"description": "The answer"},
            "default": {
                "description": "A refusal or a failure",
                "content": _json({"$ref": "#/components/schemas/Error"}),
            },
        },
    }
    if each.body is not None:
        reference = {"$ref": f"#/components/schemas/{each.body.__name__}"}
        operation["requestBody"] = {"required": True, "content": _json(reference)}
    names = _path_parameters(each.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation


def _json(schema: Mapping[str, object]) -> JsonObject:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> Sequence[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]
