"""What is signed of a receipt, over the cases that a codec in another language reads as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshnet.domain.ids import Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import Seam, SeamEnd, SeamWork, Side, Statement, signed_bytes
from meshnet.transport.receipts import require_statement

FILE = Path(__file__).parents[3] / "conformance" / "receipts.json"
CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in json.loads(FILE.read_text())["cases"]
}


def end_of(fields: dict[str, Any]) -> SeamEnd:
    layers = LayerRange(fields["start"], fields["end"]) if "end" in fields else None
    return SeamEnd(NodeId(fields["node_id"]), layers)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", CASES)
def test_the_signed_bytes_are_those_that_were_promised(name: str, side: Side) -> None:
    case = CASES[name]
    seam = Seam(
        SessionKey(RouteSessionId(case["session_id"]), case["route_epoch"]),
        case["trace_id"],
        Digest(case["model_artifact_digest"]),
        Digest(case["runtime_recipe_digest"]),
        end_of(case["upstream"]),
        end_of(case["downstream"]),
    )
    work, said = SeamWork(**case["work"]), case["signed"][side.value]
    assert signed_bytes(seam, work, side).hex() == said["bytes"]
    require_statement(seam, Statement(work, said["public_key"], said["signature"]), side)
