"""The form of ``traceparent``, by the examples and rules of W3C's Trace Context."""

import pytest
from hypothesis import given

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.tracing import NO_TRACER, TraceContext, new_trace, parse_traceparent
from tests.support.frames import traces

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_example_of_the_specification_is_read():
    read = parse_traceparent(f"00-{TRACE_ID}-{SPAN_ID}-01")
    assert read == TraceContext(TRACE_ID, SPAN_ID, 1)
    assert read.sampled


@given(context=traces)
def test_what_is_written_is_read_again(context):
    assert parse_traceparent(context.traceparent) == context


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00_{TRACE_ID}_{SPAN_ID}_01",
    ],
)
def test_what_is_not_of_the_form_is_no_trace(header):
    assert parse_traceparent(header) is None


def test_of_a_newer_version_what_is_known_is_read():
    read = parse_traceparent(f"cc-{TRACE_ID}-{SPAN_ID}-03-what-the-future-will-be-like")
    assert read == TraceContext(TRACE_ID, SPAN_ID, 1)


def test_a_trace_that_is_not_sampled_says_so():
    read = parse_traceparent(f"00-{TRACE_ID}-{SPAN_ID}-00")
    assert read is not None
    assert not read.sampled


def test_new_traces_differ_and_can_be_sent():
    first, second = new_trace(), new_trace()
    assert first.trace_id != second.trace_id
    assert parse_traceparent(first.traceparent) == first


@pytest.mark.parametrize(
    ("trace_id", "span_id", "flags", "field"),
    [
        ("0" * 32, SPAN_ID, 1, "trace_id"),
        (TRACE_ID, "xyz", 1, "span_id"),
        (TRACE_ID, SPAN_ID, 256, "flags"),
    ],
)
def test_a_context_that_could_not_be_sent_is_refused(trace_id, span_id, flags, field):
    with pytest.raises(InvalidArgumentError, match=field):
        TraceContext(trace_id, span_id, flags)


def test_who_records_nothing_passes_the_place_on():
    parent = new_trace()
    span = NO_TRACER.begin("work", parent)
    assert span.context == parent
    assert not span.recording
    assert NO_TRACER.begin("work", None).context.trace_id != parent.trace_id
