"""What seams carry is a pure matter of how fast the links are and how wide the model is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.tensors import DType
from meshnet.session.links import PREFERRED, Link, choose_boundary

ALL = tuple(DType)
MEGABIT = 125_000.0
LOCAL = Link(1e9, 0.0002)
links = st.builds(Link, st.floats(1e2, 1e11), st.floats(0, 1))
widths = st.integers(1, 512).map(lambda blocks: 32 * blocks)


@pytest.mark.parametrize(
    ("link", "n_embd", "chosen"),
    [
        (LOCAL, 8192, DType.FLOAT32),
        (Link(1000 * MEGABIT, 0.0005), 4096, DType.FLOAT32),
        (Link(100 * MEGABIT, 0.001), 4096, DType.BFLOAT16),
        (Link(50 * MEGABIT, 0.03), 4096, DType.Q8_0),
        (Link(10 * MEGABIT, 0.05), 4096, DType.Q8_0),
        (Link(100 * MEGABIT, 0.001), 576, DType.FLOAT32),
    ],
)
def test_a_slow_link_and_a_wide_model_take_a_narrow_boundary(link, n_embd, chosen):
    assert choose_boundary([link], n_embd, ALL) is chosen


@given(st.lists(links, max_size=4), widths, st.sets(st.sampled_from(DType)))
def test_the_choice_is_one_that_every_node_takes(found, n_embd, dtypes):
    chosen = choose_boundary(found, n_embd, sorted(dtypes, key=lambda dtype: dtype.value))
    assert chosen in dtypes or (not dtypes & set(PREFERRED) and chosen is DType.FLOAT32)


@given(links, widths, st.floats(1, 100))
def test_a_faster_link_never_takes_a_narrower_boundary(link, n_embd, factor):
    faster = Link(link.bytes_per_second * factor, link.round_trip_seconds)
    before, after = (choose_boundary([each], n_embd, ALL) for each in (link, faster))
    assert PREFERRED.index(after) <= PREFERRED.index(before)


@given(st.lists(links, min_size=1, max_size=4), widths)
def test_the_weakest_link_decides(found, n_embd):
    alone = [PREFERRED.index(choose_boundary([link], n_embd, ALL)) for link in found]
    assert PREFERRED.index(choose_boundary(found, n_embd, ALL)) == max(alone)


def test_a_chain_of_one_node_has_no_seam_to_narrow():
    assert choose_boundary([], 4096, ALL) is DType.FLOAT32


@pytest.mark.parametrize(("speed", "delay"), [(0.0, 0.0), (1.0, -1.0)])
def test_a_link_that_cant_be_is_refused(speed, delay):
    with pytest.raises(InvalidArgumentError):
        Link(speed, delay)
