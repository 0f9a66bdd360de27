"""The machine's part of the recipe, and that it names what changes numbers here."""

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Machine, Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.machine import (
    Device,
    counting_threads,
    mathematics_digest,
    on_this_machine,
    processor_features,
)
from tests.support.tiny_gguf import TinyModel, build

RECIPE = Recipe(Digest("sha256:" + "0" * 64), "libllama", "")
GPU = Device(1, "CUDA NVIDIA GeForce RTX 3090", 24 << 30)
FLASH = replace(RECIPE, flash_attention=True)
LAYERS = 2
PAST = 257
"""Positions: as many as it takes for flash attention to cut a row's work up by threads."""


def test_the_facts_are_filled_in_and_the_same_each_time() -> None:
    found = on_this_machine(RECIPE, EngineLimits(), 3)
    assert found == on_this_machine(RECIPE, EngineLimits(), 7)
    assert found.machine.processor == processor_features() != ""
    assert found.machine.mathematics == mathematics_digest()
    assert found.engine_build.startswith("llama-cpp-python ")


def test_variables_are_kept_as_the_configuration_gives_them() -> None:
    told = replace(RECIPE, machine=Machine(variables=("GGML_CPU_TILED_MM=0",)))
    found = on_this_machine(told, EngineLimits(), 3)
    assert found.machine.variables == ("GGML_CPU_TILED_MM=0",)
    assert found.fingerprint() != on_this_machine(RECIPE, EngineLimits(), 3).fingerprint()


def test_a_gpu_and_how_many_layers_it_has_are_told_apart_and_two_alike_are_not() -> None:
    def print_of(layers: int, *devices: Device, own: int = 10) -> object:
        limits = EngineLimits(gpu_layers=layers)
        return on_this_machine(RECIPE, limits, own, devices).fingerprint()

    processor, whole, part = print_of(0, GPU), print_of(10, GPU), print_of(5, GPU)
    other = print_of(10, replace(GPU, kind="Vulkan NVIDIA GeForce RTX 3090"))
    assert len({processor, whole, part, other}) == 4
    assert processor == print_of(0)
    assert whole == print_of(99, GPU, replace(GPU, handle=2, free_bytes=1), own=12)


def test_layers_on_a_gpu_where_there_is_none_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="gpu_layers"):
        on_this_machine(RECIPE, EngineLimits(gpu_layers=1), 3, devices=())


@pytest.mark.parametrize(
    ("kv_types", "flash_attention", "architecture", "counts"),
    [
        (("f16", "f16"), False, "x86_64", False),
        (("f16", "f16"), True, "x86_64", True),
        (("f32", "f32"), True, "AMD64", True),
        (("f16", "f32"), True, "x86_64", False),
        (("q8_0", "q8_0"), True, "x86_64", False),
        (("bf16", "bf16"), True, "x86_64", False),
        (("f16", "f16"), False, "arm64", True),
    ],
)
def test_threads_count_where_kernels_cut_sums_by_them(
    kv_types: tuple[str, str], flash_attention: bool, architecture: str, counts: bool
) -> None:
    found = counting_threads(
        3, kv_types, flash_attention=flash_attention, architecture=architecture
    )
    assert found == (3 if counts else 0)


def logits(model: Path, recipe: Recipe, threads: int) -> bytes:
    """Those after a row that looks back over all positions."""
    limits = EngineLimits(PAST + 1, max_sessions=1, threads=threads)
    context = LlamaContext(LoadRequest(model, 0, LAYERS, LAYERS, recipe, limits), max_outputs=1)
    try:
        tokens = [(7 * position) % context.n_vocab for position in range(PAST)]
        for start in range(0, PAST, recipe.chunk_tokens):
            part = tuple(tokens[start : start + recipe.chunk_tokens])
            context.decode([Rows(0, start, part, outputs=1)])
        return context.decode([Rows(0, PAST, (1,), outputs=1)]).tobytes()
    finally:
        context.close()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="what was measured holds for x86"
)
@pytest.mark.parametrize("recipe", [RECIPE, FLASH], ids=["plain", "flash"])
def test_recipes_differ_by_threads_exactly_where_numbers_do(recipe: Recipe, tmp_path: Path) -> None:
    model = build(tmp_path / "tiny.gguf", TinyModel(layers=LAYERS, seed=3))
    one, three = EngineLimits(threads=1), EngineLimits(threads=3)
    same_name = (
        on_this_machine(recipe, one, LAYERS).fingerprint()
        == on_this_machine(recipe, three, LAYERS).fingerprint()
    )
    assert (logits(model, recipe, 1) == logits(model, recipe, 3)) == same_name
