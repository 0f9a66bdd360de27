import pytest

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model import rehearsal
from meshnet.model.description import describe, free_cuts, legal_cuts
from meshnet.model.rehearsal import rehearsed_ranges
from tests.support.tiny_gguf import TinyModel, index_of

DIGEST = Digest("sha256:" + "1" * 64)


def test_a_short_range_a_long_one_and_the_tail_are_measured():
    index = index_of(TinyModel(layers=6))
    info = describe(index)
    short, long, tail = rehearsed_ranges(index, DIGEST)
    layers = [held.plan.layers for held in (short, long, tail)]
    assert layers == [LayerRange(1, 2), LayerRange(1, 5), LayerRange(3, 6)]
    assert short.layer_bytes == info.layer_bytes[1]
    assert long.layer_bytes == sum(info.layer_bytes[1:5])
    assert [held.output_bytes for held in (short, long, tail)] == [0, 0, info.output_bytes]
    assert long.total_bytes > long.layer_bytes


def test_of_a_large_model_the_long_range_is_as_long_as_there_is_room(monkeypatch):
    index = index_of(TinyModel(layers=6))
    one = describe(index).layer_bytes[1]
    for room, end in ((0, 2), (2 * one, 3), (100 * one, 5)):
        monkeypatch.setattr(rehearsal, "LAYER_BYTES", room)
        _, long, _ = rehearsed_ranges(index, DIGEST)
        assert long.plan.layers == LayerRange(1, end)


def test_a_model_with_windows_is_cut_where_no_layers_of_zeros_are_computed():
    index = index_of(TinyModel("gemma3", layers=24))
    info = describe(index)
    free = free_cuts(info, legal_cuts(info))
    assert len(free) < info.total_layers - 1
    for held in rehearsed_ranges(index, DIGEST):
        layers = held.plan.layers
        assert layers.start in free
        assert layers.end in (*free, info.total_layers)


def test_a_model_of_two_layers_has_nothing_between_two_cuts():
    with pytest.raises(ModelUnsupportedError, match="between two cuts"):
        rehearsed_ranges(index_of(TinyModel(layers=2)), DIGEST)
