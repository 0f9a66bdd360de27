"""libllama keeps the engine contract as head, middle, tail and whole, and what is beyond it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshnet.domain.errors import EngineError, InvalidArgumentError, NodeNotReadyError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.recipe import Recipe
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StatusCode
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    EngineLimits,
    LoadRequest,
    ShardEngine,
    TokenChoice,
)
from meshnet.engine.contract import CHECKS
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.gguf import read_index
from tests.support.llama_bench import CHUNK, LAYERS, MODELS, SHARDS, Bench, good, load_request
from tests.support.tiny_gguf import TinyModel, build
from tests.support.tiny_recurrent import LAYERS as RECURRENT_LAYERS
from tests.support.tiny_recurrent import build_recurrent


@pytest.fixture
def engines(slices) -> Iterator[list[LlamaShardEngine]]:
    made: list[LlamaShardEngine] = []
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("place", SHARDS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_libllama_keeps_the_contract(check, place, architecture, slices, engines):
    def make() -> tuple[ShardEngine, LoadRequest]:
        limits = EngineLimits(context_length=64, max_sessions=3)
        engines.append(LlamaShardEngine())
        return engines[-1], load_request(slices[architecture, place], limits)

    check(make)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_a_recurrent_model_keeps_the_contract_without_going_back(check, recurrent, engines):
    def make() -> tuple[ShardEngine, LoadRequest]:
        engines.append(LlamaShardEngine())
        return engines[-1], recurrent

    check(make)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> LoadRequest:
    """A model whose state can't be cut back."""
    path = build_recurrent(tmp_path_factory.mktemp("recurrent") / "mamba.gguf")
    recipe = Recipe(Digest("sha256:" + "0" * 64), "libllama", "test", chunk_tokens=CHUNK)
    limits = EngineLimits(context_length=64, max_sessions=3)
    return LoadRequest(path, 0, RECURRENT_LAYERS, RECURRENT_LAYERS, recipe, limits)


def test_going_back_is_probed_and_not_known_by_name(recurrent, slices, engines):
    engines += [LlamaShardEngine(), LlamaShardEngine()]
    assert not engines[0].load(recurrent).capabilities.supports_rollback
    request = load_request(slices["gemma3", "middle"], EngineLimits(64, 1))
    assert engines[1].load(request).capabilities.supports_rollback


def test_a_place_that_was_used_before_starts_empty(bench):
    bench.prefilled("a")
    expected = good(bench.engine.decode(bench.decode("a", 5)))
    bench.release("a")
    for name in "bcd":
        bench.prefilled(name)
        bench.release(name)
    bench.prefilled("a")
    assert good(bench.engine.decode(bench.decode("a", 5))) == expected


@pytest.mark.parametrize("rows", [CHUNK + 1, 64, 1000])
def test_more_rows_than_a_batch_holds_are_refused(bench, rows):
    if rows <= bench.limits.context_length:
        result = bench.engine.prefill(bench.request("a", 0, rows))
        assert result.status.code is StatusCode.INVALID_ARGUMENT
        assert f"at most {CHUNK}" in result.status.message
    else:
        assert not bench.engine.prefill(bench.request("a", 0, rows)).status.ok
    bench.release("a")
    bench.prefilled("a")


def test_values_that_arent_finite_leave_no_trace_in_the_cache(slices):
    """NaN in a freed cache would reach the next session through masked attention."""
    bench = Bench(slices["llama", "middle"])
    bench.prefilled("a")
    expected = good(bench.engine.decode(bench.decode("a", 5)))
    bench.release("a")
    request = bench.request("x", 0, 5)
    for bad in (np.nan, np.inf, -np.inf):
        data = np.zeros((5, bench.held.n_embd), np.float32)
        data[3, 7] = bad
        tensor = EngineTensor(RESIDUAL, DType.FLOAT32, data.shape, data.tobytes())
        result = bench.engine.prefill(replace(request, input=BoundaryBundle((tensor,))))
        assert result.status.code is StatusCode.INVALID_ARGUMENT
        assert "finite" in result.status.message
    bench.prefilled("a")
    assert good(bench.engine.decode(bench.decode("a", 5))) == expected
    assert bench.engine.health().state is LifecycleState.READY
    bench.engine.close()


@pytest.fixture
def nan_model(tmp_path: Path) -> dict[str, SliceFile]:
    """Shards of a model whose token 7 is NaN, as in a file that was damaged or badly converted."""
    path = build(tmp_path / "nan.gguf", TinyModel(layers=LAYERS))
    data = bytearray(path.read_bytes())
    index = read_index(path)
    tensor = index.tensors["token_embd.weight"]
    width = tensor.shape[0]
    offset = tensor.offset + 7 * width * 4
    data[offset : offset + 4 * width] = np.full(width, np.nan, np.float32).tobytes()
    path.write_bytes(data)
    cache = SliceCache(tmp_path)
    return {place: cache.ensure(path, LayerRange(*SHARDS[place])) for place in ("head", "whole")}


@pytest.mark.parametrize("place", ["head", "whole"])
@pytest.mark.parametrize("sessions", [1, 8], ids=["one session", "probed with the bad token"])
def test_a_model_that_computes_nan_fails_and_later_sessions_are_right(place, sessions, nan_model):
    bench = Bench(nan_model[place], EngineLimits(64, sessions))
    bench.prefilled("a")
    expected = good(bench.engine.decode(bench.decode("a", 5)))
    bench.release("a")
    bad = replace(bench.request("x", 0, 3), token_ids=(1, 7, 2))
    result = bench.engine.prefill(bad)
    assert result.status.code is StatusCode.ENGINE_FAILED
    assert bench.engine.health().state is LifecycleState.FAILED
    assert bench.engine.metrics().open_sessions == 0
    bench.prefilled("a")
    assert good(bench.engine.decode(bench.decode("a", 5))) == expected
    assert bench.engine.health().state is LifecycleState.READY
    bench.engine.close()


def test_sessions_beside_one_that_computed_nan_miss_and_can_be_rebuilt(nan_model):
    bench = Bench(nan_model["head"])
    bench.prefilled("a", "b")
    bad = replace(bench.decode("a", 5), token_ids=(7,))
    failed, beside = bench.engine.execute([bad, bench.decode("b", 5)])
    assert failed.status.code is StatusCode.ENGINE_FAILED
    expected = good(beside)
    missed = bench.engine.decode(bench.decode("b", 6))
    assert missed.status.code is StatusCode.CACHE_MISS
    bench.release("b")
    bench.prefilled("b")
    assert good(bench.engine.decode(bench.decode("b", 5))) == expected
    bench.engine.close()


def test_log_probabilities_come_when_asked_for(tail):
    params = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3)
    tail.prefilled("a")
    token = tail.engine.decode(tail.decode("a", 5, TokenChoice(params))).token()
    assert token.logprob is not None
    assert token.logprob <= 0
    assert token.top_logprobs[0].token_id == token.token_id
    assert len(token.top_logprobs) == 3


def test_the_context_can_be_filled_to_its_last_position(bench):
    limit = bench.limits.context_length
    for position in range(0, limit - CHUNK, CHUNK):
        good(bench.engine.prefill(bench.request("a", position, CHUNK)))
    for position in range(limit - CHUNK, limit):
        good(bench.engine.decode(bench.decode("a", position)))
    full = bench.engine.decode(bench.decode("a", limit))
    assert full.status.code is StatusCode.CONTEXT_LENGTH_EXCEEDED
    assert full.cache_result is not None
    assert full.cache_result.past_len == limit


def test_nothing_runs_before_a_load_or_after_a_close(slices):
    engine = LlamaShardEngine()
    with pytest.raises(NodeNotReadyError):
        engine.capabilities()
    bench = Bench(slices["llama", "head"])
    request = bench.request("a", 0, 3)
    for unloaded in (engine, bench.engine):
        unloaded.close()
        assert unloaded.prefill(request).status.code is StatusCode.NODE_NOT_READY
        assert unloaded.health().state is LifecycleState.LOADING
        unloaded.release(request.key)
        unloaded.cancel(request.key)


def test_it_can_be_loaded_anew_with_another_shard(slices):
    bench = Bench(slices["llama", "head"])
    bench.prefilled("a")
    bench.engine.load(load_request(slices["llama", "tail"], bench.limits))
    held = bench.engine.capabilities()
    assert (held.shard_start, held.is_tail) == (3, True)
    assert bench.engine.metrics().open_sessions == 0
    bench.engine.close()


def test_a_load_that_fails_keeps_what_was_loaded(slices, tmp_path):
    bench = Bench(slices["llama", "head"])
    missing = replace(
        load_request(slices["llama", "head"], bench.limits), model_path=tmp_path / "x"
    )
    with pytest.raises(EngineError, match="can't load"):
        bench.engine.load(missing)
    bench.prefilled("a")
    bench.engine.close()


@pytest.mark.parametrize(
    ("place", "claimed"),
    [
        ("head", (0, 2, 4)),
        ("head", (1, 2, 4)),
        ("head", (0, 1, 1)),
        ("tail", (3, 4, 5)),
        ("middle", (1, 3, 3)),
        ("whole", (0, 4, 5)),
        ("whole", (0, 5, 5)),
        ("whole", (0, 3, 4)),
    ],
)
def test_a_file_that_holds_other_layers_than_claimed_is_refused(place, claimed, slices):
    start, end, total = claimed
    request = load_request(slices["llama", place], EngineLimits(64, 1))
    claim = replace(request, shard_start=start, shard_end=end, total_layers=total)
    with pytest.raises(InvalidArgumentError):
        LlamaShardEngine().load(claim)


def test_a_boundary_of_another_type_is_refused_at_load(slices):
    request = load_request(slices["llama", "head"], EngineLimits(64, 1))
    recipe = replace(request.recipe, boundary_dtype=DType.FLOAT16)
    with pytest.raises(InvalidArgumentError, match="boundary_dtype"):
        LlamaShardEngine().load(replace(request, recipe=recipe))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_model_is_refused_with_libllamas_reason(content, tmp_path, slices):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    request = replace(load_request(slices["llama", "head"], EngineLimits(64, 1)), model_path=path)
    with pytest.raises(EngineError) as caught:
        LlamaShardEngine().load(request)
    assert str(path) in caught.value.message
    assert "gave no reason" not in caught.value.message


def test_a_shard_over_its_memory_bound_is_refused(slices):
    cut = slices["llama", "tail"]
    engine = LlamaShardEngine()
    with pytest.raises(EngineError, match="fewer layers"):
        engine.load(load_request(cut, EngineLimits(64, max_sessions=1, memory_bytes=1000)))
    assert engine.health().state is LifecycleState.LOADING
    engine.load(load_request(cut, EngineLimits(64, max_sessions=1, memory_bytes=cut.size)))
    engine.close()
