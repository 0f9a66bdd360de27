"""Split = unsplit: a chain of slices gives the unsplit model's logits, bit for bit, at any cut."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.model.architectures import VERIFIED
from tests.support.parity import Play, Slices, differing, play_chain
from tests.support.tiny_gguf import TinyModel, build
from tests.support.tiny_tensors import TINY

SHORT = Play(prompt_tokens=40, decode_steps=4, threads=1, chunk_tokens=16)
FULL = Play(prompt_tokens=300, decode_steps=32)


def all_two_way(total: int) -> list[tuple[int, ...]]:
    return [(cut,) for cut in range(1, total)]


def some_four_way(total: int, count: int) -> list[tuple[int, ...]]:
    draw = random.Random(total)
    every = list(itertools.combinations(range(1, total), 3))
    return draw.sample(every, count)


def require_parity(model: Path, cache: Path, play: Play, cuts: list[tuple[int, ...]]) -> None:
    slices = Slices(model, cache, play)
    unsplit = play_chain(slices, (), play)
    wrong = {}
    for cut in cuts:
        steps = differing(unsplit, play_chain(slices, cut, play))
        if steps:
            wrong[cut] = steps
    assert not wrong, f"steps with other bits, by cut: {wrong}"


def tiny_models() -> list[TinyModel]:
    """Each architecture; with sliding windows, so many layers that slices lack a kind of them."""
    return [
        TinyModel(name, layers=layers)
        for name in sorted(TINY)
        for layers in ((4,) if VERIFIED[name].window is None else (6, 7))
    ]


@pytest.mark.parametrize("model", tiny_models(), ids=lambda it: f"{it.architecture}-{it.layers}")
def test_tiny_random_models_agree_at_every_cut(model: TinyModel, tmp_path: Path) -> None:
    path = build(tmp_path / "model.gguf", model)
    neighbours = [(cut, cut + 1) for cut in range(1, model.layers - 1)]
    require_parity(path, tmp_path, SHORT, [*all_two_way(model.layers), *neighbours])


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3moe"])
@pytest.mark.parametrize(
    ("kv_type", "flash_attention"), [("q8_0", True), ("q4_0", True), ("f32", False), ("f16", True)]
)
def test_other_caches_agree_at_two_cuts(
    architecture: str, kv_type: str, flash_attention: bool, tmp_path: Path
) -> None:
    model = TinyModel(architecture, layers=6, embedding=128, heads=2, kv_heads=1)
    path = build(tmp_path / "model.gguf", model)
    play = replace(SHORT, kv_type=kv_type, flash_attention=flash_attention)
    require_parity(path, tmp_path, play, [(1, 4), (2, 3)])


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_smollm2_agrees_at_all_two_way_and_five_four_way_cuts(smollm2_path, tmp_path):
    require_parity(smollm2_path, tmp_path, FULL, [*all_two_way(30), *some_four_way(30, 5)])


@pytest.mark.model
def test_real_models_agree_with_a_quantised_cache(smollm2_path, gemma3_path, tmp_path):
    play = Play(prompt_tokens=200, decode_steps=4, kv_type="q8_0", flash_attention=True)
    require_parity(smollm2_path, tmp_path, play, [(10, 20)])
    require_parity(gemma3_path, tmp_path, play, [(6, 12)])


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_gemma3_agrees_at_all_two_way_and_five_four_way_cuts(gemma3_path, tmp_path):
    require_parity(gemma3_path, tmp_path, FULL, [*all_two_way(18), *some_four_way(18, 5)])
