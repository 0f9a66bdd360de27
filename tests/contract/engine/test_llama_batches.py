"""What steps of libllama share, rows, batches and caches, changes no bit of any of them."""

import itertools
from dataclasses import replace

import pytest
from gguf import GGMLQuantizationType

from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.engine.base import DecodeRequest, EngineLimits
from meshnet.model.cache import SliceCache
from tests.support.llama_bench import CHUNK, LAYERS, MODELS, SHARDS, Bench, good, key
from tests.support.tiny_gguf import TinyModel, build


def test_a_batch_with_gaps_between_its_sessions_keeps_each_ones_rows(bench):
    """The native tap sees a graph for each run of neighbouring sequences."""
    bench.prefilled("a", "b", "c", "d")
    expected = {name: good(bench.engine.decode(bench.decode(name, 5))) for name in "abcd"}
    for order in itertools.permutations("acd"):
        for name in "abcd":
            bench.release(name)
        bench.prefilled("a", "b", "c", "d")
        bench.release("b")
        before = bench.engine.metrics().steps
        batch = [bench.decode(name, 5) for name in order]
        made = [good(result) for result in bench.engine.execute(batch)]
        assert made == [expected[name] for name in order]
        assert bench.engine.metrics().steps == before + 1


def test_more_decode_rows_than_one_batch_holds_are_computed_in_several(bench):
    bench.prefilled("a", "b", "c")
    batch = [bench.decode(name, 5, rows=CHUNK // 2 + 1) for name in "abc"]
    together = [good(result) for result in bench.engine.execute(batch)]
    for name in "abc":
        bench.release(name)
    bench.prefilled("a", "b", "c")
    batch = [bench.decode(name, 5, rows=CHUNK // 2 + 1) for name in "abc"]
    assert together == [good(bench.engine.execute([request])[0]) for request in batch]


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("place", SHARDS)
def test_a_fork_of_a_chunked_prompt_equals_a_session_with_the_same_chunks(
    place, architecture, slices
):
    """Also behind sliding windows, in a slot that held something else, and cut inside a chunk."""
    bench = Bench(slices[architecture, place], EngineLimits(context_length=128, max_sessions=3))
    shared = 2 * CHUNK + 5

    def continued(name: str, first: DecodeRequest) -> list[object]:
        rest = [bench.decode("a", position) for position in range(shared + 1, shared + 6)]
        mine = [replace(step, key=first.key, idempotency_step=i) for i, step in enumerate(rest, 9)]
        return [good(bench.engine.decode(step)) for step in (first, *mine)]

    for name in ("a", "b"):
        for position, rows in ((0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, 5)):
            chunk = replace(bench.request("a", position, rows), key=key(name))
            good(bench.engine.prefill(chunk))
    step = bench.decode("a", shared)
    expected = continued("b", replace(step, key=key("b")))
    for position in range(shared, shared + 2 * CHUNK, CHUNK):
        good(bench.engine.prefill(bench.request("a", position, CHUNK)))
    bench.release("b")
    fork = CacheExpectation(CacheMode.FORK, shared, key("a"))
    assert continued("c", replace(step, key=key("c"), expectation=fork)) == expected
    bench.engine.close()


def test_a_new_epoch_takes_over_the_cache_of_the_one_before(bench):
    bench.prefilled("a", "b")
    expected = good(bench.engine.decode(bench.decode("a", 5)))
    step = bench.decode("a", 5)
    later = SessionKey(RouteSessionId("a"), 1)
    fork = CacheExpectation(CacheMode.FORK, 5, key("a"))
    assert good(bench.engine.decode(replace(step, key=later, expectation=fork))) == expected
    assert bench.engine.metrics().open_sessions == 2


def test_a_place_that_an_older_epoch_leaves_is_empty_for_the_next_step_of_the_list(bench):
    expected = good(bench.engine.decode(bench.decode("d", 0)))
    bench.release("d")
    bench.prefilled("a", "b")
    bench.release("a")
    later = SessionKey(RouteSessionId("b"), 1)
    chunk = replace(bench.request("b", 0, 5), key=later)
    # The chunk takes a's place, and the decode step, which is computed first, that of b.
    opened, beside = bench.engine.execute([chunk, bench.decode("d", 0)])
    assert good(beside) == expected
    assert good(opened) is not None


@pytest.mark.parametrize("architecture", MODELS)
def test_rows_of_many_sessions_together_equal_single_steps(architecture, slices):
    bench = Bench(slices[architecture, "tail"], EngineLimits(64, 4))
    names, rows = "abcd", (1, 3, 3, CHUNK)
    bench.prefilled(*names)
    singles = {
        name: [good(bench.engine.decode(bench.decode(name, 5 + i))) for i in range(count)]
        for name, count in zip(names, rows, strict=True)
    }
    for name in names:
        bench.release(name)
    bench.prefilled(*names)
    batch = [bench.decode(name, 5, rows=count) for name, count in zip(names, rows, strict=True)]
    made = bench.engine.execute(batch)
    assert [list(result.tokens()) for result in made] == [singles[name] for name in names]
    bench.engine.close()


def test_steps_of_one_session_in_one_list_run_one_after_the_other(bench):
    prefill = bench.request("a", 0, 5)
    batch = [prefill, bench.decode("a", 5), bench.decode("a", 6), prefill]
    made = [good(result) for result in bench.engine.execute(batch)]
    bench.release("a")
    alone = [bench.request("a", 0, 5), bench.decode("a", 5), bench.decode("a", 6)]
    assert made[:3] == [good(bench.engine.execute([request])[0]) for request in alone]
    assert made[3] == made[0]


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0]
)
def test_no_bit_of_a_session_depends_on_how_many_decode_beside_it(architecture, kind, tmp_path):
    model = TinyModel(architecture, layers=LAYERS, quantization=kind)
    path = build(tmp_path / "model.gguf", model)
    bench = Bench(SliceCache(tmp_path).ensure(path, LayerRange(0, 1)), EngineLimits(64, 8))
    bench.prefilled(*"abcdefgh")
    alone = [good(bench.engine.decode(bench.decode(name, 5))) for name in "abcdefgh"]
    for count in range(2, 9):
        for name in "abcdefgh":
            bench.release(name)
        bench.prefilled(*"abcdefgh"[:count])
        batch = [bench.decode(name, 5) for name in "abcdefgh"[:count]]
        assert [good(result) for result in bench.engine.execute(batch)] == alone[:count]
    bench.engine.close()


def test_rows_are_computed_together_where_that_is_exact(tmp_path):
    model = TinyModel(layers=LAYERS, quantization=GGMLQuantizationType.Q8_0)
    path = build(tmp_path / "model.gguf", model)
    cut = SliceCache(tmp_path).ensure(path, LayerRange(0, 1))
    for sessions in (1, 2, 3, 8):
        bench = Bench(cut, EngineLimits(64, sessions))
        assert bench.held.exact_sessions == sessions
        names = "abcdefgh"[:sessions]
        bench.prefilled(*names)
        before = bench.engine.metrics().steps
        bench.engine.execute([bench.decode(name, 5) for name in names])
        assert bench.engine.metrics().steps == before + 1
        bench.engine.close()


def test_going_far_back_over_sliding_windows_is_exact(slices):
    bench = Bench(slices["gemma3", "head"], EngineLimits(context_length=1024, max_sessions=1))
    for position in range(0, 112, CHUNK):
        good(bench.engine.prefill(bench.request("a", position, CHUNK)))
    expected = good(bench.engine.decode(bench.decode("a", 112)))
    for position in range(113, 113 + 40 * CHUNK, CHUNK):
        good(bench.engine.prefill(bench.request("a", position, CHUNK)))
    back = bench.decode("a", 112)
    back = replace(back, expectation=CacheExpectation(CacheMode.TRUNCATE, 112))
    assert good(bench.engine.decode(back)) == expected
    bench.engine.close()
