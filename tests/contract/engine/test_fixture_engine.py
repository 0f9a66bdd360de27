"""The fixture engine keeps the engine contract, as head, middle, tail and whole."""

import pytest

from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest, ShardEngine
from meshnet.engine.contract import CHECKS
from meshnet.engine.fixture import FixtureEngine

RECIPE = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")


@pytest.mark.parametrize("layers", [(0, 2), (2, 4), (4, 6), (0, 6)], ids=str)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_fixture_engine_keeps_the_contract(check, layers):
    def make() -> tuple[ShardEngine, LoadRequest]:
        limits = EngineLimits(context_length=64, max_sessions=3)
        start, end = layers
        return FixtureEngine(), LoadRequest(None, start, end, 6, RECIPE, limits)

    check(make)
