import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import NodeId
from meshnet.tracker.chains import Machines, Seats, Task, best_chain, gaps, is_complete, seconds_of
from meshnet.tracker.mending import mended, on_the_fewest, placed_anew, placed_ideally
from meshnet.tracker.observed import LINK_SECONDS, Observed
from meshnet.tracker.placement import Machine, Objective
from meshnet.tracker.replicas import replicas
from tests.support.clusters import MODEL, beat, layers, offered

ALIKE = Machine("", 40, 1000.0)


def task_of(count: int = 8, objective: Objective = Objective.LATENCY) -> Task:
    event = offered(count, objective=objective)
    return Task.of(event.digest, event.shape, event.demand)


def seats(**held: tuple[int, int]) -> Seats:
    return {NodeId(name): layers(*span) for name, span in held.items()}


def machines(**sizes: int) -> Machines:
    return {NodeId(name): Machine("", size, 1000.0) for name, size in sizes.items()}


def test_a_gap_is_what_would_make_a_chain_the_smallest_first():
    task = task_of()
    held = seats(a=(0, 2), b=(0, 4), c=(6, 8), d=(3, 6)).values()
    assert gaps(task, held)[:2] == [layers(2, 3), layers(4, 6)]
    assert not is_complete(task, held)
    assert is_complete(task, [*held, layers(2, 3)])


def test_the_replacement_is_the_one_with_which_a_token_takes_the_least_time():
    everyone = {NodeId(name): ALIKE for name in "abcd"}
    observed = Observed(0.0)
    held = seats(a=(0, 4))
    free = [NodeId("b"), NodeId("c")]
    assert mended(task_of(), held, free, everyone, observed) == seats(b=(4, 8))
    for name, round_trip in (("a", 0.001), ("b", 0.1), ("c", 0.001)):
        observed.heard(NodeId(name), beat(round_trip=round_trip), 1.0)
    assert mended(task_of(), held, free, everyone, observed) == seats(c=(4, 8))
    everyone[NodeId("c")] = Machine("", 40, 1e9)
    assert mended(task_of(), held, free, everyone, Observed(0.0)) == seats(c=(4, 8))


def test_a_gap_that_fits_on_no_machine_and_a_model_that_nobody_holds_aren_t_mended():
    small = machines(a=40, b=10)
    assert mended(task_of(), seats(a=(0, 4)), [NodeId("b")], small, Observed(0.0)) is None
    assert mended(task_of(), {}, [NodeId("a"), NodeId("b")], small, Observed(0.0)) is None


def test_machines_alike_keep_what_they_hold_in_a_new_placement():
    everyone = {NodeId(name): ALIKE for name in "abcd"}
    for held in (seats(c=(0, 4)), seats(d=(4, 8), b=(0, 4)), seats(a=(4, 8))):
        anew = placed_anew(task_of(), everyone, everyone, Observed(0.0), held)
        assert anew is not None
        assert held.items() <= anew.items()


def test_a_new_placement_keeps_off_slow_links():
    observed, everyone = Observed(0.0), {NodeId(name): ALIKE for name in "abc"}
    for name, round_trip in (("a", 0.002), ("b", 0.2), ("c", 0.002)):
        for _ in range(3):
            observed.heard(NodeId(name), beat(round_trip=round_trip), 1.0)
    anew = placed_anew(task_of(), everyone, everyone, observed, {})
    assert anew is not None
    assert set(anew) == {"a", "c"}


def test_the_fewest_are_the_largest_that_hold_it():
    sizes = machines(a=10, b=30, c=50, d=45)
    packed = on_the_fewest(task_of(), sizes, sizes)
    assert packed is not None
    assert set(packed) == {"c", "d"}
    assert on_the_fewest(task_of(), [NodeId("a"), NodeId("b")], sizes) is None


def test_of_more_machines_than_are_looked_at_the_quickest_and_the_largest_are():
    many: Machines = {
        **{NodeId(f"s{number:03}"): Machine("", 12, 10.0) for number in range(400)},
        NodeId("quick"): Machine("", 40, 1e6),
        NodeId("large"): Machine("", 100, 5.0),
    }
    ideal = placed_ideally(task_of(), many, many)
    assert ideal is not None
    assert "quick" in ideal


def test_a_placement_for_many_counts_all_holders_of_a_layer():
    task = task_of(objective=Objective.THROUGHPUT)
    everyone = {NodeId(name): Machine("", 80, 100.0) for name in "abc"}
    held = seats(a=(0, 4), b=(4, 8), c=(0, 4))
    assert seconds_of(task, held, everyone) == pytest.approx(40 / 100)
    held[NodeId("c")] = layers(0, 8)
    assert seconds_of(task, held, everyone) == pytest.approx(1 / (100 / 40 + 100 / 80))
    assert seconds_of(task, seats(a=(0, 4)), everyone) == np.inf


def test_the_best_chain_goes_by_the_quickest_holders():
    everyone = {NodeId("a"): ALIKE, NodeId("b"): ALIKE, NodeId("c"): Machine("", 99, 2000.0)}
    held = seats(a=(0, 4), b=(4, 8), c=(4, 8))
    seconds, nodes = best_chain(task_of(), held, everyone)
    assert nodes == ("a", "c")
    assert seconds == pytest.approx(0.04 + 0.02 + 2 * LINK_SECONDS)


spans = st.tuples(st.integers(0, 7), st.integers(1, 8)).map(
    lambda pair: layers(pair[0], min(8, pair[0] + pair[1]))
)


@given(
    st.dictionaries(st.sampled_from("abcd"), spans, min_size=1),
    st.dictionaries(st.sampled_from("efgh"), st.sampled_from([5, 20, 40, 80])),
)
def test_whatever_is_held_mending_makes_a_chain_with_machines_that_were_free(held, free):
    task, kept = task_of(), {NodeId(name): span for name, span in held.items()}
    everyone = {**machines(**dict.fromkeys(held, 80)), **machines(**free)}
    if is_complete(task, kept.values()):
        return
    more = mended(task, kept, [NodeId(name) for name in free], everyone, Observed(0.0))
    if more is None:
        (gap, *_) = gaps(task, kept.values())
        assert all(size < len(gap) * 10 for size in free.values())
        return
    assert is_complete(task, [*kept.values(), *more.values()])
    assert more.keys() <= set(free)
    assert all(len(span) * 10 <= free[name] for name, span in more.items())


@given(
    st.lists(st.sampled_from([15, 25, 45, 90]), max_size=6),
    st.sampled_from(list(Objective)),
)
def test_each_spare_machine_that_fits_holds_what_others_hold_and_makes_nothing_worse(
    sizes, objective
):
    task = task_of(objective=objective)
    held = seats(a=(0, 4), b=(4, 6), c=(6, 8))
    spare = {f"s{number}": size for number, size in enumerate(sizes)}
    everyone = {**machines(a=40, b=40, c=40), **machines(**spare)}
    given_seats = replicas([task], {MODEL: held}, [NodeId(name) for name in spare], everyone)
    more = given_seats.get(MODEL, {})
    assert set(more) == {name for name, size in spare.items() if size >= 20}
    assert set(more.values()) <= {*held.values(), task.whole}
    assert seconds_of(task, {**held, **more}, everyone) <= seconds_of(task, held, everyone)
