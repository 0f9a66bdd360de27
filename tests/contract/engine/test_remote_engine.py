"""A node reached over gRPC keeps the engine contract, as far as the wire can say it.

As middle and tail: a head takes whole generations, not steps.
"""

from collections.abc import Iterator

import pytest

from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest, ShardEngine
from meshnet.engine.contract import CHECKS
from tests.support.mesh import LAYERS
from tests.support.remote_engine import RemoteEngine

NOT_ON_THE_WIRE = {
    "wrong_past_len": "a node ends a session whose step it refuses",
    "metrics_count_cancelled": "a node reports open sessions alone",
    "fork_is_exact": "a node forks caches that it keeps of sessions that have ended",
    "bad_choice_is_its_own": "a session's sampling parameters are said once, when it is opened",
}
RECIPE = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1", chunk_tokens=16)


@pytest.fixture
def remotes() -> Iterator[list[RemoteEngine]]:
    made: list[RemoteEngine] = []
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("layers", [(4, LAYERS), (2, 4)], ids=["tail", "middle"])
@pytest.mark.parametrize("check", [name for name in CHECKS if name not in NOT_ON_THE_WIRE])
def test_a_node_keeps_the_contract_through_grpc(check, layers, remotes):
    def make() -> tuple[ShardEngine, LoadRequest]:
        remotes.append(RemoteEngine())
        limits = EngineLimits(context_length=64, max_sessions=3)
        start, end = layers
        return remotes[-1], LoadRequest(None, start, end, LAYERS, RECIPE, limits)

    CHECKS[check](make)
