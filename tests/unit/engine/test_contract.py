"""The contract suite names the rule that an engine breaks, and reserved places stay reserved."""

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest, SessionKey
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import (
    ArchitectureAuxStateHook,
    EngineLimits,
    LoadRequest,
    MtpHook,
    ShardEngine,
)
from meshnet.engine.contract import ContractViolation, assert_shard_engine_contract
from meshnet.engine.fixture import FixtureEngine

RECIPE = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")


class KeepsCancelled(FixtureEngine):
    """Doesn't hear a cancel."""

    def cancel(self, key: SessionKey) -> None:
        return


def make(kind: type[FixtureEngine]) -> tuple[ShardEngine, LoadRequest]:
    return kind(), LoadRequest(None, 0, 2, 6, RECIPE, EngineLimits(64, max_sessions=3))


def test_an_engine_that_keeps_the_contract_passes_whole():
    assert_shard_engine_contract(lambda: make(FixtureEngine))


def test_an_engine_that_breaks_a_rule_is_told_which():
    with pytest.raises(ContractViolation, match="cancel_refuses"):
        assert_shard_engine_contract(lambda: make(KeepsCancelled))


def test_reserved_hooks_refuse_what_nobody_offers_yet():
    assert not MtpHook().enabled
    with pytest.raises(InvalidArgumentError, match="mtp"):
        MtpHook(enabled=True)
    with pytest.raises(InvalidArgumentError, match="kind"):
        ArchitectureAuxStateHook("")
