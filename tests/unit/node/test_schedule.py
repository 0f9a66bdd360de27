from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.frames import SessionKey
from meshnet.domain.ids import RouteSessionId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.engine.base import DecodeRequest, PrefillRequest
from meshnet.node.schedule import choose_step

EXACT = CacheExpectation(CacheMode.EXACT, 5)


def decode(name: str = "s") -> DecodeRequest:
    return DecodeRequest(SessionKey(RouteSessionId(name), 0), 5, EXACT, 1, token_ids=(1,))


def prefill(rows: int = 8) -> PrefillRequest:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    return PrefillRequest(SessionKey(RouteSessionId("p"), 0), 0, fresh, 0, token_ids=(1,) * rows)


def test_all_waiting_decodes_form_one_step():
    choice = choose_step([decode(), decode(), decode()], 32, last_was_prefill=False)
    assert choice.indices == (0, 1, 2)


def test_prefill_and_decode_take_turns():
    waiting = [decode(), prefill(), decode()]
    assert choose_step(waiting, 32, last_was_prefill=True).indices == (0, 2)
    assert choose_step(waiting, 32, last_was_prefill=False).indices == (1,)


def test_prefill_chunks_run_alone_and_in_order():
    choice = choose_step([prefill(), prefill()], 32, last_was_prefill=True)
    assert (choice.indices, choice.prefill) == ((0,), True)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.booleans(), st.integers(1, 40))
def test_something_always_runs_and_decodes_stay_within_their_bound(kinds, last, bound):
    waiting = [prefill() if is_prefill else decode() for is_prefill in kinds]
    choice = choose_step(waiting, bound, last_was_prefill=last)
    assert choice.indices
    chosen = {type(waiting[index]) for index in choice.indices}
    assert len(chosen) == 1
    assert len(choice.indices) <= (1 if choice.prefill else bound)


def test_a_prompt_waits_for_one_decode_step_at_most():
    waiting = [decode(), prefill()]
    first = choose_step(waiting, 32, last_was_prefill=True)
    second = choose_step(waiting, 32, last_was_prefill=first.prefill)
    assert (first.prefill, second.prefill) == (False, True)
