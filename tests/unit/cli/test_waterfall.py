"""Bars of a waterfall: in proportion, and meeting where the times meet."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.waterfall import BAR_CELLS, cells
from meshnet.session.timings import Share

TIMES = st.floats(0, 1e4)
SHARES = st.builds(Share, TIMES, TIMES, TIMES, TIMES)


def test_a_bar_is_in_proportion():
    assert cells(25.0, Share(25.0, 50.0, 0.0, 0.0), 100.0) == (9, 9, 18, 0, 0)


@given(start=TIMES, share=SHARES)
def test_what_fills_the_whole_time_fills_the_whole_bar(start, share):
    full = start + share.total
    assert sum(cells(start, share, full)) == (BAR_CELLS if full else 0)


@given(first=SHARES, second=SHARES)
def test_a_bar_begins_in_the_cell_where_the_one_before_ended(first, second):
    full = first.total + second.total
    assert sum(cells(0.0, first, full)) == cells(first.total, second, full)[0]


@given(start=TIMES, share=SHARES, full=st.floats(0, 1e5))
def test_no_part_is_shorter_than_nothing(start, share, full):
    assert min(cells(start, share, max(full, start + share.total))) >= 0
