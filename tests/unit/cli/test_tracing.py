"""Whether traces are sent, and where to, as options and environment say it."""

import sys

import pytest

from meshnet.cli.tracing import trace_config, tracer_for
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.tracing import NO_TRACER
from meshnet.node.config import TraceConfig

URL, OTHER = "http://127.0.0.1:4318", "https://collector.example:4318"


def test_without_option_and_variable_nothing_is_sent():
    assert trace_config(None, None, tokens=False) is None
    with tracer_for(None, "meshnet-node", "node-1") as tracer:
        assert tracer is NO_TRACER


def test_the_option_goes_before_the_variable():
    assert trace_config(URL, OTHER, tokens=False) == TraceConfig(URL)
    assert trace_config(None, OTHER, tokens=True) == TraceConfig(OTHER, tokens=True)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:4318", "grpc://host:4317", "http://", "x", "http://[::1:4318", "http://host:x"],
)
def test_what_is_no_http_url_is_refused(url):
    with pytest.raises(InvalidArgumentError, match="otlp"):
        trace_config(url, None, tokens=False)


def test_tokens_of_no_trace_can_not_be_told():
    with pytest.raises(InvalidArgumentError, match="trace-tokens"):
        trace_config(None, None, tokens=True)


@pytest.fixture
def no_sdk(monkeypatch):
    """As if the extra weren't installed."""
    monkeypatch.delitem(sys.modules, "meshnet.cli.otlp", raising=False)
    monkeypatch.delattr("meshnet.cli.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)


def test_without_the_extra_the_option_is_refused_with_how_to_install_it(no_sdk):
    with (
        pytest.raises(InvalidArgumentError, match=r"meshnet\[telemetry\]"),
        tracer_for(trace_config(URL, OTHER, tokens=False), "meshnet-run", "tiny"),
    ):
        pass


@pytest.mark.parametrize("endpoint", [OTHER, "no url"])
def test_without_the_extra_the_variable_is_passed_over_with_a_note(no_sdk, endpoint, capsys):
    assert trace_config(None, endpoint, tokens=False) is None
    said = capsys.readouterr().err
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in said
    assert "meshnet[telemetry]" in said


def test_a_variable_that_is_no_url_is_named():
    with pytest.raises(InvalidArgumentError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        trace_config(None, "host:4318", tokens=False)
