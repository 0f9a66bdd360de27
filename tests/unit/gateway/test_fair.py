"""Turns are shared out fairly; simulated, with nodes that hide how much room they have."""

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.gateway.fair import FairQueue, Party, QueueBounds, Ticket

TOKENS = 10


@dataclass
class Nodes:
    """A queue before nodes that take ``room`` generations, each for as long as it has tokens."""

    room: int
    queue: FairQueue = field(default_factory=lambda: FairQueue(QueueBounds(10_000, 10_000)))
    now: float = 0.0
    began: dict[Ticket, float] = field(default_factory=dict)
    served: list[tuple[str, int]] = field(default_factory=list)
    _ends: list[tuple[float, int, Ticket]] = field(default_factory=list)

    def ask(self, key: str, tokens: int = TOKENS, weight: int = 1) -> Ticket:
        ticket = Ticket(Party(key, weight), tokens)
        self.queue.join(ticket)
        self.serve()
        return ticket

    def serve(self) -> None:
        """All who have their turn ask the nodes, which refuse those who are too many."""
        granted = []
        while (ticket := self.queue.grant()) is not None:
            granted.append(ticket)
        for ticket in granted:
            if len(self._ends) < self.room:
                self.began[ticket] = self.now
                heapq.heappush(self._ends, (self.now + ticket.cost, ticket.number, ticket))
            else:
                assert self.queue.refused(ticket)

    def step(self) -> bool:
        """Go on to the next end; False if nothing runs."""
        if not self._ends:
            return False
        self.now, _, ticket = heapq.heappop(self._ends)
        self.served.append((ticket.party.key_id, ticket.cost))
        self.queue.leave(ticket, ticket.cost, float(ticket.cost))
        self.serve()
        self.queue.probe()
        self.serve()
        return True

    def until_idle(self) -> None:
        while self.step():
            pass
        assert self.queue.waiting == self.queue.running == 0


@given(room=st.integers(1, 8), heavy=st.integers(1, 100), before=st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_a_single_request_waits_for_no_more_than_the_next_end(
    room: int, heavy: int, before: int
) -> None:
    nodes = Nodes(room)
    for _ in range(heavy):
        nodes.ask("heavy")
    for _ in range(before):
        nodes.step()
    asked = nodes.now
    single = nodes.ask("single")
    nodes.until_idle()
    assert nodes.began[single] - asked <= TOKENS


@given(
    room=st.integers(1, 6),
    asked=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(0, 3)), max_size=60
    ),
)
@settings(max_examples=60, deadline=None)
def test_everybody_is_served_in_the_end_and_the_nodes_never_idle(
    room: int, asked: list[tuple[str, int, int]]
) -> None:
    nodes = Nodes(room)
    for key, tokens, steps in asked:
        nodes.ask(key, tokens)
        for _ in range(steps):
            nodes.step()
            assert nodes.queue.running == room or not nodes.queue.waiting
    nodes.until_idle()
    assert sorted(nodes.served) == sorted((key, tokens) for key, tokens, _ in asked)


@given(
    room=st.integers(1, 4),
    weights=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    costs=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
@settings(max_examples=60, deadline=None)
def test_keys_that_always_ask_get_tokens_by_their_weights(
    room: int, weights: tuple[int, int], costs: tuple[int, int]
) -> None:
    nodes = Nodes(room)
    for _ in range(110):
        for key, weight, cost in zip("ab", weights, costs, strict=True):
            nodes.ask(key, cost, weight)
    for _ in range(100):
        nodes.step()
    got = {
        key: sum(cost for whose, cost in nodes.served if whose == key) / weight
        for key, weight in zip("ab", weights, strict=True)
    }
    most = max(cost / weight for cost, weight in zip(costs, weights, strict=True))
    # Both still ask: none of them was served 110 times.
    assert abs(got["a"] - got["b"]) <= 2 * (room + 1) * most


def test_of_one_key_the_first_comes_first_also_after_refusals() -> None:
    nodes = Nodes(2)
    tickets = [nodes.ask("a") for _ in range(9)]
    nodes.until_idle()
    assert [nodes.began[ticket] for ticket in tickets] == sorted(nodes.began.values())


def test_a_key_saves_nothing_up_while_it_asks_for_nothing() -> None:
    nodes = Nodes(1)
    nodes.ask("late")
    nodes.step()
    for _ in range(100):
        nodes.ask("busy")
    for _ in range(50):
        nodes.step()
    for _ in range(20):
        nodes.ask("late")
    del nodes.served[:]
    for _ in range(20):
        nodes.step()
    assert 9 <= sum(key == "late" for key, _ in nodes.served) <= 11


def waiting_queue(bounds: QueueBounds, key: str = "a") -> FairQueue:
    """A queue whose nodes are full with one generation."""
    queue = FairQueue(bounds)
    running, refused = Ticket(Party(key), 1), Ticket(Party(key), 1)
    for ticket in (running, refused):
        queue.join(ticket)
        assert queue.grant() is ticket
    queue.refused(refused)
    queue.leave(refused, 0, 0.0)
    return queue


@pytest.mark.parametrize(("requests", "per_key"), [(2, 2), (3, 2), (2, 3)])
def test_no_more_requests_wait_than_may(requests: int, per_key: int) -> None:
    queue = waiting_queue(QueueBounds(requests, per_key))
    for _ in range(2):
        queue.join(Ticket(Party("a"), 1))
    with pytest.raises(ResourceExhaustedError) as full:
        queue.join(Ticket(Party("a"), 1))
    assert full.value.details["retry_after_seconds"] == "1.000"
    if requests > 2:
        queue.join(Ticket(Party("b"), 1))
    else:
        with pytest.raises(ResourceExhaustedError):
            queue.join(Ticket(Party("b"), 1))


def test_the_choices_of_a_request_count_as_one() -> None:
    queue = waiting_queue(QueueBounds(1))
    party = Party("a")
    for _ in range(16):
        queue.join(Ticket(party, 1))
    with pytest.raises(ResourceExhaustedError):
        queue.join(Ticket(Party("a"), 1))


def test_a_look_for_room_takes_none_away() -> None:
    nodes = Nodes(3)
    for _ in range(4):
        nodes.ask("a")
    nodes.until_idle()
    nodes.queue.probe()
    for _ in range(3):
        nodes.ask("a")
    assert nodes.queue.running == 3


def test_without_a_queue_what_the_nodes_refuse_is_refused() -> None:
    queue = FairQueue(QueueBounds(0))
    ticket = Ticket(Party("a"), 1)
    queue.join(ticket)
    assert queue.grant() is ticket
    assert not queue.refused(ticket)
    queue.leave(ticket, 0, 0.0)
    assert queue.waiting == queue.running == 0


@pytest.mark.parametrize("running", [0, 1])
def test_without_a_queue_the_nodes_are_asked_again_after_a_refusal(running: int) -> None:
    queue = FairQueue(QueueBounds(0))
    for index in range(running + 1):
        ticket = Ticket(Party("a"), 1)
        queue.join(ticket)
        assert queue.grant() is ticket
        if index == running:
            assert not queue.refused(ticket)
            queue.leave(ticket, 0, 0.0)
    later = Ticket(Party("b"), 1)
    queue.join(later)
    assert queue.grant() is later


def test_without_a_queue_what_the_choices_of_a_request_learnt_is_forgotten_with_them() -> None:
    queue = FairQueue(QueueBounds(0))
    party = Party("a")
    choices = [Ticket(party, 1) for _ in range(2)]
    for ticket in choices:
        queue.join(ticket)
        assert queue.grant() is ticket
    assert queue.refused(choices[1])
    for ticket in choices:
        queue.leave(ticket, 1, 1.0)
    for ticket in (Ticket(Party("b"), 1), Ticket(Party("c"), 1)):
        queue.join(ticket)
        assert queue.grant() is ticket


def test_a_choice_of_a_request_that_runs_waits_also_without_a_queue() -> None:
    queue = FairQueue(QueueBounds(0))
    party = Party("a")
    first, second = Ticket(party, 1), Ticket(party, 1)
    for ticket in (first, second):
        queue.join(ticket)
        assert queue.grant() is ticket
    assert queue.refused(second)
    assert queue.grant() is None
    queue.leave(first, 5, 1.0)
    assert queue.grant() is second


def test_the_wait_that_is_told_follows_from_how_long_others_took() -> None:
    nodes = Nodes(2)
    for _ in range(10):
        nodes.ask("a")
    nodes.step()
    assert nodes.queue.running == 2
    assert nodes.queue.expected_wait_seconds() == pytest.approx((7 + 1) * TOKENS / 2)


def test_who_leaves_the_line_is_not_served() -> None:
    nodes = Nodes(1)
    nodes.ask("a")
    left = nodes.ask("a")
    nodes.queue.leave(left, 0, 0.0)
    nodes.until_idle()
    assert left not in nodes.began


@pytest.mark.parametrize(
    ("bounds", "field"),
    [((-1,), "requests"), ((1, -1), "requests_per_key"), ((1, 1, 0.0), "seconds")],
)
def test_bounds_that_make_no_sense_are_refused(bounds: tuple[float, ...], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        QueueBounds(*bounds)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
