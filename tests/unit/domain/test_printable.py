"""Text of strangers on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.printable import printable


def test_what_steers_a_terminal_is_replaced_and_the_rest_kept():
    assert printable("büro\x1b[2J\r\n\u202e", 100) == "büro?[2J???"


@given(st.text(), st.integers(0, 20))
def test_no_more_comes_out_than_was_asked_for_and_all_of_it_can_be_printed(text, most):
    made = printable(text, most)
    assert len(made) == min(len(text), most)
    assert made.isprintable()
