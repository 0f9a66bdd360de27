"""What a long prompt does to others' tokens, played in virtual time with measured step times."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.node.groups import Away, most_decode_rows
from meshnet.node.schedule import Pace, Ready, StepCosts, Turn, choose_step

MILLISECONDS = {1: 6.4, 2: 12.9, 3: 14.6, 4: 18.2, 8: 30.0, 16: 62.9, 32: 111.5}
"""Half of SmolLM2 (Q4_1) on one thread of the machine this was written on, by rows."""
HOP = 0.5
"""Milliseconds from a node to the next."""
HALVES, UNEVEN = (1.0, 1.0), (1.2, 0.8)
"""What two nodes' steps take by that."""
NOISE = 0.15
"""What else the machine does makes a step longer by this share in the mean."""
CHUNK, CREDITS, ROWS = 32, 4, 8
COSTS = StepCosts(MILLISECONDS)


class Node:
    """One node's queue and engine."""

    def __init__(self, world: "World", least_piece: int, stages: int, slow: float) -> None:
        self.world = world
        self.least_piece = least_piece
        self.stages = stages
        self.slow = slow
        self.waiting: list[Ready] = []
        self.turn = Turn()
        self.costs = StepCosts()
        self.away = Away()
        self.left: dict[SessionKey, float] = {}
        """When each talker's last step ended."""
        self.decode_rows = 1
        self.busy = False
        self.arrived: Callable[[Ready], None]

    def put(self, ready: Ready) -> None:
        least = self.least_piece if ready.prefill else 0
        self.waiting.append(replace(ready, least_piece=least))
        if ready.session in self.left:
            self.away = self.away.seen(self.world.now - self.left.pop(ready.session))
        # What comes at the same moment goes in the same step.
        self.world.after(0.0, self.start)

    def start(self) -> None:
        if self.busy or not self.waiting:
            return
        cut = None
        talkers = self.world.talkers
        if talkers:
            cut = Pace().cut(self.costs, self.decode_rows, self.least_piece or CHUNK, CHUNK)
        prompt = any(ready.prefill for ready in self.waiting)
        rows = most_decode_rows(ROWS, talkers, self.stages, self.costs, self.away, prompt=prompt)
        choice = choose_step(self.waiting, self.turn, rows, cut)
        if not choice.prefill:
            self.decode_rows = choice.rows
        self.turn = choice.turn
        ran = [self.waiting[index] for index in choice.indices]
        self.waiting = [r for i, r in enumerate(self.waiting) if i not in choice.indices]
        took = (COSTS.seconds(choice.rows) or 0.0) * self.slow * self.world.noise()
        self.costs = self.costs.seen(choice.rows, took)
        self.busy = True
        self.world.after(took, lambda: self.end(ran, choice.rows))

    def end(self, ran: list[Ready], rows: int) -> None:
        self.busy = False
        for ready in ran:
            if not ready.prefill:
                self.left[ready.session] = self.world.now
        first = ran[0]
        if first.prefill and rows < first.rows:
            self.waiting.insert(0, replace(first, rows=first.rows - rows))
        else:
            for ready in ran:
                self.arrived(ready)
        self.start()


class World:
    """Two nodes, some talkers, and a prompt whose chunks go from the one to the other."""

    def __init__(
        self,
        talkers: int,
        chunks: int,
        least_piece: int,
        slow: tuple[float, float] = HALVES,
        hop: float = HOP,
    ) -> None:
        self.now = 0.0
        self.hop = hop
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.talkers = talkers
        self.times: dict[SessionKey, list[float]] = {}
        self.random = random.Random(1)
        self.head = Node(self, least_piece, 2, slow[0])
        self.tail = Node(self, least_piece, 1, slow[1])
        self.head.arrived = lambda ready: self.after(hop, lambda: self.hand_on(ready))
        self.tail.arrived = self.computed
        self.chunks = deque([CHUNK] * chunks)
        self.credits = CREDITS
        self.prompt_ended: float | None = None if chunks else 0.0
        for number in range(talkers):
            self.head.put(Ready(SessionKey(RouteSessionId(f"talker {number}"), 0), 1))
        self.send_chunk()

    def noise(self) -> float:
        return 1 + NOISE * self.random.expovariate(1.0)

    def after(self, wait: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + wait, next(self.order), act))

    def send_chunk(self) -> None:
        if self.chunks and self.credits:
            self.credits -= 1
            rows = self.chunks.popleft()
            self.head.put(Ready(SessionKey(RouteSessionId("prompt"), 0), rows, prefill=True))

    def hand_on(self, ready: Ready) -> None:
        rows = CHUNK if ready.prefill else 1
        self.tail.put(replace(ready, rows=rows))
        if ready.prefill:
            self.send_chunk()

    def computed(self, ready: Ready) -> None:
        if ready.prefill:
            self.credits += 1
            self.send_chunk()
            if not self.chunks and self.credits == CREDITS:
                self.prompt_ended = self.now
            return
        self.times.setdefault(ready.session, []).append(self.now)
        self.after(self.hop, lambda: self.head.put(Ready(ready.session, 1)))

    def play(self, until: float) -> None:
        while self.events and self.now < until and (self.prompt_ended is None or until < 1e9):
            self.now, _, act = heapq.heappop(self.events)
            act()

    def gaps(self) -> list[float]:
        found = [
            later - earlier
            for times in self.times.values()
            for earlier, later in itertools.pairwise(times)
        ]
        return sorted(found)


def p99(gaps: list[float]) -> float:
    return gaps[int(len(gaps) * 0.99)]


@pytest.mark.parametrize(
    ("talkers", "least_piece", "slow"),
    [
        (1, 1, HALVES),
        (1, 2, UNEVEN),
        (2, 2, HALVES),
        (3, 2, UNEVEN),
        (4, 1, HALVES),
        (8, 2, HALVES),
    ],
)
def test_beside_a_prompt_of_2048_tokens_gaps_grow_three_times_at_most(talkers, least_piece, slow):
    quiet = World(talkers, 0, least_piece, slow)
    quiet.play(10_000)
    busy = World(talkers, 2048 // CHUNK, least_piece, slow)
    busy.play(1e9)
    assert busy.prompt_ended is not None
    alone = World(0, 2048 // CHUNK, least_piece, slow)
    alone.play(1e9)
    assert alone.prompt_ended is not None
    assert p99(busy.gaps()) <= 3.0 * p99(quiet.gaps())
    # The prompt isn't starved either.
    assert busy.prompt_ended < (2.5 if talkers > 2 else 4) * alone.prompt_ended


def test_chunks_that_cant_be_cut_delay_a_token_by_one_of_them_on_each_node():
    busy = World(1, 2048 // CHUNK, 0)
    busy.play(1e9)
    undisturbed = 2 * (MILLISECONDS[32] + MILLISECONDS[1] + HOP)
    assert p99(busy.gaps()) <= (1 + 2 * NOISE) * undisturbed


def rate(talkers: int, hop: float, *, divides: bool, slow: tuple[float, float] = HALVES) -> float:
    """Tokens in the last of ten seconds; who doesn't divide has a group for each node."""
    world = World(talkers, 0, 2, slow, hop)
    if not divides:
        world.head.away = Away(0.0)
        world.head.left = _Nothing()
    world.play(10_000)
    return sum(time > 9_000 for times in world.times.values() for time in times)


class _Nothing(dict[SessionKey, float]):
    """Forgets at once."""

    def __setitem__(self, key: SessionKey, value: float) -> None:
        pass


@pytest.mark.parametrize("talkers", [4, 8])
def test_on_a_slow_link_more_groups_than_nodes_keep_the_nodes_busy(talkers):
    assert rate(talkers, 20.0, divides=True) > 1.1 * rate(talkers, 20.0, divides=False)


@pytest.mark.parametrize("talkers", [2, 4, 8])
def test_in_one_room_more_groups_lose_nothing(talkers):
    assert rate(talkers, HOP, divides=True) > 0.97 * rate(talkers, HOP, divides=False)


@pytest.mark.parametrize("talkers", [4, 8, 16])
@pytest.mark.parametrize("slow", [(1.0, 1.5), (1.0, 3.0)])
def test_where_the_tail_is_the_slowest_groups_dont_go_on_dividing(talkers, slow):
    divided = rate(talkers, 5.0, divides=True, slow=slow)
    assert divided > 0.88 * rate(talkers, 5.0, divides=False, slow=slow)
