"""Formats of strings: what libllama takes for one under the grammar, and what it doesn't."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.session.schema_grammar.formats import FORMATS
from tests.support.schemas import schema_grammar
from tests.support.tiny_gguf import IM_END, build

VALID = {
    "date": (
        "2024-12-31 2020-01-05 2024-02-29 2000-02-29 1999-04-30 2100-02-28 2023-10-30 0001-01-01 "
        "9999-12-29 1000-06-29 1900-07-31 0400-02-29"
    ),
    "time": "00:00:00Z 23:59:59.123456789+23:59 12:30:05-00:00 09:10:20Z",
    "date-time": "2024-12-31T23:59:59Z 2020-02-29T00:00:00.5+01:00 2010-10-30T20:10:00-08:30",
    "duration": "PT1H30M P1Y2M3DT4H5M6S P3W PT0S P1D P10Y P1M PT36H PT5M30S P1DT12H P2Y6M P1YT1S",
    "email": (
        "Ada.Lovelace@Example.COM a@b.c o'neil+tag@mail-1.example.org first.m.last@x.museum "
        "UPPER_case@sub.sub.example.co.uk 1@2.de "
        "a-very-long-local-part-of-an-address-with-some-50-letters@example.net"
    ),
    "hostname": "localhost Example.COM a1.b-2.c3 xn--bcher-kva.example x.y.z.example.co.uk",
    "ipv4": "0.0.0.0 255.255.255.255 192.168.10.1 8.8.8.8 100.200.99.249",
    "ipv6": (
        ":: ::1 fe80::1 2001:DB8::8:800:200c:417a 1:2:3:4:5:6:7:8 1:: 1:2:3:4:5:6:7:: "
        "::2:3:4:5:6:7:8 1::3:4:5:6:7:8 ::ffff:192.168.0.1 64:ff9b::1.2.3.4 1:2:3:4:5:6:1.2.3.4 "
        "1:2::7:8 1:2:3:4:5::8 ::1.2.3.4"
    ),
    "uuid": "123e4567-e89b-12d3-a456-426614174000 123E4567-E89B-12D3-A456-42661417400F",
}
INVALID = {
    "date": (
        "2023-02-29 1900-02-29 2100-02-29 2024-02-30 2024-04-31 2024-13-01 2024-00-10 2024-01-00 "
        "2024-01-32 24-01-01 2024-1-1 0000-01-01 2024-06-31 2024-09-31 2024-11-31"
    ),
    "time": "24:00:00Z 12:60:00Z 12:00:00 12:00Z 12:00:00+24:00 12:00:00.Z 1:00:00Z",
    "date-time": "2024-12-31 2023-02-29T00:00:00Z 2024-12-31T23:59:59 2024-12-31_23:59:59Z",
    "duration": "P PT P1 1D P1DT PT1M1H P1W1D P1YT PT1D P1H P1D1M -P1D PT1H30S P1Y1D",
    "email": "a@ @b.c a@b a..b@c.d .a@b.c a.@b.c a@-b.c a@b-.c a@b..c a@b.c. a@b_c.d",
    "hostname": "-a a- a..b a. .a a_b a.-b a.b- 1.2.3.4",
    "ipv4": "256.1.1.1 1.1.1 1.1.1.1.1 01.1.1.1 1.1.1.1. a.b.c.d 1..1.1",
    "ipv6": (
        "1 : ::: 1:2:3:4:5:6:7 1:2:3:4:5:6:7:8:9 1::2::3 12345:: g:: 1:2:3:4:5:6:7:8:: "
        "::1:2:3:4:5:6:7:8 1:2:3:4:5:6:7:1.2.3.4 ::1.2.3 ::1.2.3.256 1:2:3:4::5:6:7:8 1: :1 "
        "1::2:3:4:5:6:1.2.3.4 1.2.3.4"
    ),
    "uuid": (
        "123e4567e89b12d3a456426614174000 123e4567-e89b-12d3-a456-42661417400 "
        "g23e4567-e89b-12d3-a456-426614174000 {123e4567-e89b-12d3-a456-426614174000}"
    ),
}


@pytest.fixture
def grammars(tmp_path: Path) -> Iterator[LlamaGrammars]:
    made = LlamaGrammars(build(tmp_path / "tiny.gguf"))
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_s_texts_are_taken_and_no_others(name, grammars):
    grammar = schema_grammar({"type": "string", "format": name}, "schema")
    assert VALID[name].split() == [it for it in VALID[name].split() if taken(grammars, grammar, it)]
    assert not [it for it in INVALID[name].split() if taken(grammars, grammar, it)]


def taken(grammars: LlamaGrammars, grammar: str, text: str) -> bool:
    """Byte by byte, and then the end; a tiny vocabulary has a token for each byte."""
    made: list[int] = []
    for token in (*f'"{text}"'.encode(), IM_END):
        if not grammars.one(grammar, made, token):
            return False
        made.append(token)
    return True
