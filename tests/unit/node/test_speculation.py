"""When guessing pays, on simulated chains: the controller sees times, and decides."""

import itertools
import random
from dataclasses import dataclass

import pytest

from meshnet.domain.generation import GeneratedToken, Speculation
from meshnet.node.speculation import FIRST_REST, SpeculationControl
from meshnet.node.track import PLAIN, DecodeTrack, NextStep

MS = 1_000_000
TOKENS = 500


@dataclass(frozen=True)
class Link:
    """A chain: each node's milliseconds for a first row and for each more, and for the way."""

    nodes: int
    step: float
    row: float
    trip: float

    def compute(self, rows: int) -> float:
        return self.step + self.row * (rows - 1)


def simulate(
    link: Link, right: float, mode: Speculation, max_rows: int = 8, seed: int = 1
) -> float:
    """Milliseconds that a generation takes if guesses are right with probability ``right``.

    Each node is busy for a step's time and hands it on; the way adds its time at the end.
    """
    draw = random.Random(seed)
    control = SpeculationControl(mode, max_rows, link.nodes)
    track = DecodeTrack(1, 10**9, frozenset())
    now, known = 0.0, 1
    track.take(track.number(), GeneratedToken(1, 1))
    free = [0.0] * link.nodes
    coming: list[tuple[float, NextStep]] = []
    started = 0.0
    while known < TOKENS:
        step = None
        if free[0] <= now:
            guess = lambda _pending: int(draw.random() < right)  # noqa: E731 - 1 is always right
            step = track.due(control.plan, 1000, guess)
        if step is not None:
            started = now if step.alone else started
            at = now
            for node in range(link.nodes):
                at = free[node] = max(at, free[node]) + link.compute(len(step.tokens))
            control.stepped(len(step.tokens), round(link.compute(len(step.tokens)) * MS))
            coming.append((at + link.trip, step))
            continue
        arrival, answered = coming[0] if coming else (float("inf"), None)
        if free[0] > now and free[0] < arrival:
            now = free[0]
            continue
        now = arrival
        coming.pop(0)
        assert answered is not None
        for offset in range(len(answered.tokens)):
            token = GeneratedToken(answered.position + offset + 1, 1)
            taken = track.take(answered.number, token)
            if taken is None:
                continue
            known += 1
            first = taken.first_of
            if first is not None and first.alone and not first.truncate:
                control.travelled(len(first.tokens), round((now - started) * MS))
            guessed = draw.random() < right if taken.guessed is None else taken.guessed
            control.guessed(right=guessed, sent=taken.guessed is not None)
            control.token(round(now * MS))
    return now


LAN = Link(2, 5.0, 2.0, 0.5)
SLOW = Link(2, 5.0, 2.0, 40.0)
ALONE = Link(1, 10.0, 1.0, 0.0)
DEAR_ROWS = Link(2, 5.0, 5.0, 0.5)
LINKS = {"lan": LAN, "slow": SLOW, "alone": ALONE, "dear rows": DEAR_ROWS}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("right", [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_guessing_never_costs_what_it_may_not(link, right):
    ratios = [
        simulate(link, right, Speculation.OFF, seed=seed)
        / simulate(link, right, Speculation.AUTO, seed=seed)
        for seed in range(2)
    ]
    assert min(ratios) >= 0.97


@pytest.mark.parametrize(
    ("link", "right", "gain"),
    [(SLOW, 0.99, 5.0), (SLOW, 0.9, 2.5), (SLOW, 0.6, 1.4), (ALONE, 0.99, 2.0), (LAN, 0.99, 1.5)],
)
def test_guessing_gains_where_it_can(link, right, gain):
    off = simulate(link, right, Speculation.OFF)
    assert off / simulate(link, right, Speculation.AUTO) >= gain


def test_one_row_at_a_time_still_hides_a_slow_link():
    off = simulate(SLOW, 0.99, Speculation.OFF, max_rows=1)
    assert off / simulate(SLOW, 0.99, Speculation.AUTO, max_rows=1) >= 4.0


def test_what_is_off_or_impossible_stays_off():
    for mode, rows in itertools.product(Speculation, (0, 8)):
        control = SpeculationControl(mode, rows, 2)
        control.travelled(1, 50 * MS)
        control.stepped(1, MS)
        for now in range(100):
            control.guessed(right=True, sent=False)
            control.token(now * MS)
        assert control.possible is (mode is not Speculation.OFF and rows > 0)
        assert (control.plan is PLAIN) is not control.possible


def test_a_trial_that_was_slower_is_followed_by_a_rest_that_doubles():
    control = SpeculationControl(Speculation.AUTO, 8, 2)
    control.travelled(1, 10 * MS)
    control.stepped(1, 5 * MS)
    now, plain = 0, []
    for _ in range(1000):
        control.guessed(right=True, sent=False)
        # A promise that doesn't come true: all tokens take twice as long with a plan.
        now += 10 * MS if control.plan is PLAIN else 20 * MS
        control.token(now)
        plain.append(control.plan is PLAIN)
    rests = [len(list(run)) for still, run in itertools.groupby(plain) if still]
    assert rests[1] >= FIRST_REST - 8
    assert rests[2] >= 2 * rests[1] - 8
    assert plain.count(False) <= 130


def test_what_was_sent_is_counted_apart_from_what_would_have_been():
    control = SpeculationControl(Speculation.AUTO, 8, 2)
    control.guessed(right=True, sent=True)
    control.guessed(right=False, sent=True)
    control.guessed(right=True, sent=False)
    assert (control.proposed, control.accepted) == (2, 1)
