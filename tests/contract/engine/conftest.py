"""Shards of tiny models, and benches that hold one."""

from collections.abc import Iterator

import pytest

from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from tests.support.llama_bench import MODELS, SHARDS, Bench
from tests.support.tiny_gguf import build


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], SliceFile]:
    """Every shard of a tiny model of each architecture."""
    root = tmp_path_factory.mktemp("slices")
    cache = SliceCache(root)
    made = {}
    for name, model in MODELS.items():
        path = build(root / f"{name}.gguf", model)
        for place, (start, end) in SHARDS.items():
            made[name, place] = cache.ensure(path, LayerRange(start, end))
    return made


@pytest.fixture(params=SHARDS)
def bench(request: pytest.FixtureRequest, slices) -> Iterator[Bench]:
    made = Bench(slices["llama", request.param])
    yield made
    made.engine.close()


@pytest.fixture
def tail(slices) -> Iterator[Bench]:
    made = Bench(slices["llama", "tail"])
    yield made
    made.engine.close()
