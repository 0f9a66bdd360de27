"""``docs/api.md`` says what the gateway's bodies say."""

import json
import re
from pathlib import Path

import pytest

from meshnet.gateway.apidoc import ENDPOINTS, Endpoint

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def sections() -> dict[str, str]:
    _, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts}


def rows(section: str, heading: str) -> list[tuple[list[str], str]]:
    """Of the table with this heading: the names of each row's first cell, and its second cell."""
    _, found, rest = section.partition(f"| {heading} |")
    if not found:
        return []
    table = rest.split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line)[1:3] for line in table]
    return [(re.findall(r"`(\w+)`", names), told) for names, told in cells]


def test_every_endpoint_has_its_section() -> None:
    assert list(sections()) == [f"{each.method} {each.path}" for each in ENDPOINTS]


@pytest.mark.parametrize("each", ENDPOINTS, ids=lambda it: f"{it.method} {it.path}")
def test_a_section_names_every_parameter_once(each: Endpoint) -> None:
    section = sections()[f"{each.method} {each.path}"]
    offered = [name for names, _ in rows(section, "offered") for name in names]
    refused = [name for names, _ in rows(section, "refused") for name in names]
    assert sorted(offered) == sorted(each.parameters)
    assert sorted(refused) == sorted(each.refused or ())


@pytest.mark.parametrize("each", ENDPOINTS, ids=lambda it: f"{it.method} {it.path}")
def test_a_section_names_the_values_that_are_let_through(each: Endpoint) -> None:
    section = sections()[f"{each.method} {each.path}"]
    for names, told in rows(section, "refused"):
        values = [json.loads(value) for value in re.findall(r"`([^`]+)`", told)]
        for name in names:
            neutral = list((each.refused or {})[name])
            assert sorted(map(json.dumps, values)) == sorted(map(json.dumps, neutral)), name
