import json

import pytest
from hypothesis import given

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.events import KINDS, Event, event_from_json, event_to_json
from tests.support.happenings import events


@given(events)
def test_every_event_is_read_as_it_was_written(event: Event):
    text = event_to_json(event)
    assert event_from_json(text) == event
    assert json.loads(text)["version"] == 1


def test_every_kind_of_event_has_a_name_of_its_own():
    assert set(KINDS.values()) == set(Event.__args__)
    assert len(KINDS) == len(set(KINDS.values()))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "isn't an object"),
        ("[]", "isn't an object"),
        ('{"kind": "node_joined"}', "isn't an object"),
        ('{"kind": "node_flew", "version": 1}', "newer Meshnet"),
        ('{"kind": "node_joined", "version": 2}', "newer Meshnet"),
        ('{"kind": [], "version": 1}', "newer Meshnet"),
        ('{"kind": "node_joined", "version": 1, "node_id": 4}', r"event\.node_joined\.node_id"),
        (
            '{"kind": "placed", "version": 1, "digest": "d", "epoch": 1, '
            '"seats": [{"node_id": "a", "layers": {"start": 4, "end": 4}}]}',
            "layer range",
        ),
    ],
)
def test_what_is_no_event_is_refused_by_what_is_wrong_with_it(text: str, problem: str):
    with pytest.raises(InvalidArgumentError, match=problem):
        event_from_json(text)
