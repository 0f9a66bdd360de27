"""Where libllama puts a slice's layers, by its own rule, for what we tell it."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.llamacpp.placement import Placement, blocks_behind, place_layers

PROCESSOR = -1
MEMORY = st.lists(st.integers(0, 2**36), min_size=1, max_size=4)


def places(placement: Placement, layers_in_file: int, devices: int) -> list[int]:
    """Each layer's device and, last, the output's, as ``llama-model.cpp`` works them out."""
    if not placement.tensor_split:
        return [PROCESSOR] * (layers_in_file + 1)
    listed = [*range(devices), *([PROCESSOR] if placement.processor_last else [])]
    assert len(placement.tensor_split) == len(listed)
    splits = np.cumsum(np.array(placement.tensor_split, np.float32), dtype=np.float32)
    splits /= splits[-1]
    first = max(layers_in_file + 1 - placement.n_gpu_layers, 0)
    moved = min(placement.n_gpu_layers, layers_in_file + 1)
    found = []
    for layer in range(layers_in_file + 1):
        if layer < first or layer - first >= moved:
            found.append(PROCESSOR)
        else:
            share = np.float32(layer - first) / np.float32(moved)
            found.append(listed[int(np.searchsorted(splits, share, side="right"))])
    return found


@given(
    st.integers(1, 300),
    st.tuples(st.integers(0, 4), st.integers(1, 128), st.integers(0, 2)),
    st.booleans(),
    MEMORY,
)
def test_the_last_layers_go_to_devices_and_stubs_cost_them_nothing(wanted, blocks, tail, memory):
    before, own, stubs = blocks
    behind = blocks_behind(sum(blocks), before, own)
    placement = place_layers(wanted, own, len(behind), tail=tail, free_bytes=memory)
    found = places(placement, sum(blocks), len(memory))
    assert found[:before] == [PROCESSOR] * before
    assert list(behind) == list(range(sum(blocks)))[before + own :]
    found, moved = found[before:], min(wanted, own)
    assert found[: own - moved] == [PROCESSOR] * (own - moved)
    shared = found[own - moved : own]
    assert PROCESSOR not in shared
    assert shared == sorted(shared)
    if tail:
        assert PROCESSOR not in found[own:]
    else:
        assert found[own:] == [PROCESSOR] * (stubs + 1)


@given(st.integers(1, 64), st.integers(1, 4))
def test_equal_devices_share_equally_within_a_layer(own, devices):
    placement = place_layers(own, own, 1, tail=False, free_bytes=[2**33] * devices)
    found = places(placement, own + 1, devices)
    counts = [found.count(device) for device in range(devices)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 64), st.integers(1, 64))
def test_the_recipe_says_all_or_how_many(wanted, own):
    placement = place_layers(wanted, own, 0, tail=True, free_bytes=[1])
    assert placement.offload == ("all" if wanted >= own else f"last {wanted}")


@given(st.integers(1, 64), st.integers(0, 1), st.booleans(), MEMORY)
def test_no_layers_on_a_gpu_means_that_none_is_used(own, stubs, tail, memory):
    assume(memory)
    placement = place_layers(0, own, stubs, tail=tail, free_bytes=memory)
    assert placement == Placement(0, (), processor_last=False, offload="none")


def test_layers_on_a_gpu_without_one_are_refused_with_what_to_do():
    with pytest.raises(InvalidArgumentError, match=r"gpu_layers: 5 .* --gpu-layers 0"):
        place_layers(5, 10, 1, tail=False, free_bytes=())
