from collections.abc import Sequence

from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import TensorInfo
from meshnet.model.holders import Place, RangeHolder, Segment, pieces, places_in_slice
from meshnet.model.slice_image import image_of
from meshnet.model.slice_plan import plan_slice
from tests.support.tiny_gguf import index_of


def tensors(sizes: Sequence[int]) -> list[TensorInfo]:
    kind = GGMLQuantizationType.I8
    return [TensorInfo(str(n), kind, (size,), 0, size) for n, size in enumerate(sizes)]


@given(data=st.data(), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_pieces_are_all_the_bytes_in_order_and_none_is_too_large(
    data: st.DataObject, sizes: list[int]
) -> None:
    skip = data.draw(st.integers(0, sizes[0]), label="skip")
    most = data.draw(st.integers(1, 80), label="most")
    made = list(pieces(tensors(sizes), skip, most))
    seen = [
        (each.tensor.name, byte)
        for piece in made
        for each in piece
        for byte in range(each.start, each.stop)
    ]
    wanted = [(str(n), byte) for n, size in enumerate(sizes) for byte in range(size)]
    assert seen == wanted[skip:]
    assert all(sum(map(len, piece)) == most for piece in made[:-1])
    assert all(0 < sum(map(len, piece)) <= most for piece in made)


@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 30), min_size=8, max_size=8),
)
def test_a_holder_reads_over_padding_but_over_nothing_else(
    gaps: list[int], sizes: list[int]
) -> None:
    asked: list[tuple[int, int]] = []

    def read(content: bytearray, file: int, offset: int, length: int) -> None:
        asked.append((offset, length))
        content += bytes(byte % 251 for byte in range(offset, offset + length))

    infos, places, offset = tensors(sizes[: len(gaps)]), {}, 0
    for info, gap in zip(infos, gaps, strict=True):
        offset += gap
        places[info.name] = Place(0, offset)
        offset += info.size
    holder = RangeHolder("peer", places, 32, read, lambda: None)
    asked_for = [Segment(info, 0, info.size) for info in infos]
    found = holder.fetch(asked_for)
    assert ([segment for segment, _ in found.pieces], found.error) == (asked_for, None)
    for info, (_, content) in zip(infos, found.pieces, strict=True):
        start = places[info.name].offset
        assert content == bytes(byte % 251 for byte in range(start, start + info.size))
    assert len(asked) == 1 + sum(gap >= 32 for gap in gaps[1:])
    padding = sum(gap for gap in gaps[1:] if gap < 32)
    assert sum(length for _, length in asked) == sum(info.size for info in infos) + padding


def test_places_in_a_slice_are_those_of_its_file() -> None:
    plan = plan_slice(index_of(), LayerRange(1, 3), Digest("sha256:" + "0" * 64))
    image = image_of(plan)
    places, size = places_in_slice(plan)
    assert size == image.total
    assert set(places) == {t.source.name for t in plan.tensors if t.source is not None}
    assert places["blk.1.attn_norm.weight"].offset == next(
        offset
        for tensor, offset in zip(plan.tensors, image.offsets, strict=True)
        if tensor.name == "blk.0.attn_norm.weight"
    )
