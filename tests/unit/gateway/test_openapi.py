"""The OpenAPI document, and what requests made from it can't do: crash or hang the gateway."""

import time
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from starlette.routing import Route

from meshnet.gateway.apidoc import ENDPOINTS, document
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from tests.support.scripted_model import Script, ScriptedModel
from tests.support.tool_outputs import OSLO, TEMPLATES, hermes

ANSWER_SECONDS = 2.0
MODEL = ScriptedModel(
    Script(f"<think>Hm.</think>{hermes(OSLO)}"), name="scripted", template=TEMPLATES["qwen3"]
)
APP = create_app([MODEL], GatewayConfig(allowed_hosts=("testserver",)))
SCHEMA = schemathesis.openapi.from_dict(document("0"))
SCHEMA.app = APP


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_gateway_fail_or_hang(case: Any) -> None:
    if isinstance(case.body, dict) and "model" in case.body:
        # The name of a model that exists lets the request in.
        case.body["model"] = "scripted"
    began = time.perf_counter()
    response = case.call()
    assert time.perf_counter() - began < ANSWER_SECONDS
    assert response.status_code < 500, response.text
    assert '"code":"internal"' not in response.text
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    served = {
        (method, route.path.replace(":path", ""))
        for route in APP.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert {(each.method, each.path) for each in ENDPOINTS} == served
    told: Any = document("0")["paths"]
    assert {(method.upper(), path) for path, it in told.items() for method in it} == served


@pytest.mark.parametrize("each", [it for it in ENDPOINTS if it.body], ids=lambda it: it.path)
def test_every_parameter_of_a_body_is_in_its_schema(each: Any) -> None:
    schemas: Any = document("0")["components"]
    properties = schemas["schemas"][each.body.__name__]["properties"]
    assert set(properties) == set(each.parameters)
    assert not set(properties) & set(each.refused or ())
