"""Options of how nodes compute and what they send: they reach the engine, or are refused."""

import asyncio
import json
from pathlib import Path

import pytest

from meshnet.domain.ids import Address
from meshnet.transport.seam_client import GrpcTransport
from tests.e2e.test_nodes import node
from tests.support.commands import meshnet
from tests.support.tiny_gguf import TinyModel, build
from tests.support.unsplit import unsplit_tokens

pytestmark = pytest.mark.slow

ASKED = ("hello there", "--temperature", "0", "--raw", "--max-tokens", "20", "--json")
SMALL = ("--ctx", "256", "--threads", "1")
QUANTISED = ("--flash-attn", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads fill the blocks of quantised types."""
    model = TinyModel(layers=6, embedding=64, heads=2, kv_heads=1, seed=1)
    return build(tmp_path_factory.mktemp("models") / "wide.gguf", model)


async def tokens(model: Path, env: dict[str, str], *options: str) -> list[int]:
    ended = await meshnet("run", model, *ASKED, *SMALL, *options, env=env)
    assert (ended.status, ended.err) == (0, ""), ended.err
    answer: list[int] = json.loads(ended.out)["token_ids"]
    return answer


async def test_how_weights_are_held_changes_no_token(wide, env):
    held = await tokens(wide, env, "--mlock", "--no-mmap", "--gpu-layers", "0")
    assert held == unsplit_tokens(wide, "hello there", 20)


async def test_a_quantised_cache_gives_any_split_the_same_tokens(wide, env):
    one, three = await asyncio.gather(
        tokens(wide, env, "--nodes", "1", *QUANTISED), tokens(wide, env, "--nodes", "3", *QUANTISED)
    )
    assert one == three


async def test_a_narrow_boundary_is_repeatable_and_auto_is_exact_on_one_machine(wide, env):
    first, second = await asyncio.gather(
        tokens(wide, env, "--boundary", "q8_0"), tokens(wide, env, "--boundary", "q8_0")
    )
    assert first == second
    ended = await meshnet("run", wide, *ASKED, *SMALL, "--boundary", "auto", env=env)
    assert ended.status == 0
    assert "the seams carry float32" in ended.err
    assert json.loads(ended.out)["token_ids"] == unsplit_tokens(wide, "hello there", 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cache-type-v", "q8_0"), "cache_type_v: q8_0 values need flash attention"),
        (("--cache-type-k", "q3"), "cache_type_k: 'q3' is none of f32, f16"),
        (("--gpu-layers", "3"), "gpu_layers: 3 layers can't be put on a GPU"),
    ],
    ids=["values", "type", "gpu"],
)
async def test_options_that_cant_be_are_refused_by_name(options, said, wide, env):
    ended = await meshnet("run", wide, "h", *options, env=env)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.said


async def test_inspect_tells_what_a_smaller_cache_saves_and_how_much_fits(wide, env):
    sizes = []
    for options in ((), QUANTISED, ("--sessions", "8", *QUANTISED)):
        ended = await meshnet("inspect", wide, "--json", *options, env=env)
        room = json.loads(ended.out)["memory"]
        sizes.append(room["kv_cache_bytes"])
        assert room["fitting_layers"] in (6, None)
    assert sizes[0] * 17 == sizes[1] * 32
    assert sizes[2] == 2 * sizes[1]
    ended = await meshnet("inspect", wide, env=env)
    assert "for 4 sessions of 256 tokens" in ended.out


async def test_inspect_tells_the_fingerprint_that_a_node_has(wide, env):
    same = ("--ctx", "512", "--threads", "1", "--flash-attn")
    async with node(wide, "2:6", env, "--flash-attn") as (_, address):
        peer = GrpcTransport().peer(Address(address))
        capability = await peer.capability(5.0)
        await peer.close()
    ended = await meshnet("inspect", wide, "--fingerprint", "--json", *same, env=env)
    shown = json.loads(ended.out)
    held = capability.fingerprint
    assert shown["fingerprint"] == {name: getattr(held, name) for name in shown["fingerprint"]}
    assert shown["recipe"]["flash_attention"] is True
    other = await meshnet("inspect", wide, "--fingerprint", *same, "--boundary", "q8_0", env=env)
    assert f"recipe_id               {held.recipe_id}-q8_0" in other.out
    assert held.runtime_recipe_digest not in other.out
