"""What hops' timings mean: each node's share, and links that are what the nodes behind leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import HopTimings
from meshnet.session.timings import hop_times

MS = 10**6
TIMES = st.integers(0, 10**9)


def hop(number: int, **times: int) -> HopTimings:
    nanos = {f"{name}_nanos": value * MS for name, value in times.items()}
    return HopTimings(
        NodeId(f"node-{number}"),
        LayerRange(number, number + 1),
        prefill_tokens=20,
        decode_steps=10,
        **nanos,
    )


def test_a_link_is_what_the_nodes_behind_do_not_account_for():
    head, middle, tail = hop_times(
        [
            hop(0, decode_engine=100, decode_downstream=400),
            hop(1, decode_engine=80, decode_queue=10, decode_codec=10, decode_downstream=250),
            hop(2, decode_engine=200, decode_queue=20),
        ]
    )
    assert head.decode.wait == pytest.approx((400 - 100 - 250) / 10)
    assert middle.decode.wait == pytest.approx((250 - 220) / 10)
    assert tail.decode.wait == 0
    assert (middle.decode.engine, middle.decode.queue, middle.decode.codec) == (8, 1, 1)


def test_where_tokens_come_straight_from_the_tail_all_links_count_with_the_head_s():
    head, middle, tail = hop_times(
        [
            hop(0, decode_engine=100, decode_downstream=400),
            hop(1, decode_engine=80),
            hop(2, decode_engine=200),
        ]
    )
    assert head.decode.wait == pytest.approx((400 - 80 - 200) / 10)
    assert (middle.decode.wait, tail.decode.wait) == (0, 0)


def test_a_prompt_s_wait_is_what_is_left_of_its_span():
    (only,) = hop_times(
        [
            hop(
                0,
                prefill_began=5,
                prefill_span=100,
                prefill_queue=10,
                prefill_engine=60,
                prefill_codec=7,
            )
        ]
    )
    assert only.prefill_start == pytest.approx(5)
    assert only.prefill.wait == pytest.approx(23)
    assert only.prefill.total == pytest.approx(100)


@given(
    hops=st.lists(
        st.builds(
            HopTimings,
            st.just(NodeId("n")),
            st.just(LayerRange(0, 1)),
            *[st.integers(0, 100), TIMES, st.integers(0, 100)],
            *[TIMES] * 8,
        ),
        max_size=4,
    )
)
def test_nothing_is_negative_whatever_was_measured(hops):
    for times in hop_times(hops):
        numbers = [value for value in times.fields().values() if not isinstance(value, str)]
        assert all(number >= 0 for number in numbers)
