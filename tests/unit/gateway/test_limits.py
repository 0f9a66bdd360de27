"""What keys may use, over time that is passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.limits import DAY, SLOT, Day, Limit, Limiter, duration
from meshnet.tracker.apikeys import ApiKey, KeyLimits, digest_of, fixed_key, issue


def key(**limits: int) -> ApiKey:
    return ApiKey("k", "k", digest_of("s"), 0, limits=KeyLimits(**limits))


@given(
    rate=st.integers(1, 120),
    gaps=st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60),
)
def test_in_no_minute_does_a_key_get_in_more_often_than_twice_its_rate(
    rate: int, gaps: list[float]
) -> None:
    limiter, now = Limiter(), 1000.0
    entered: list[float] = []
    for gap in gaps:
        now += gap
        refusal = limiter.enter(key(requests_per_minute=rate), now)
        if refusal is None:
            entered.append(now)
        else:
            assert refusal.limit is Limit.REQUESTS
            assert 0 < refusal.retry_after_seconds <= 60 / rate + 1e-6
            # The time that is told is enough.
            again = now + refusal.retry_after_seconds + 1e-6
            assert limiter.enter(key(requests_per_minute=rate), again) is None
            entered.append(again)
            now = again
    for start in entered:
        assert len([at for at in entered if start <= at < start + 60]) <= 2 * rate
    # Over the long run, the rate holds.
    assert len(entered) <= rate + (entered[-1] - 1000.0) * rate / 60 + 1


def test_a_quiet_key_may_send_a_minutes_requests_at_once() -> None:
    limiter, limited = Limiter(), key(requests_per_minute=3)
    assert [limiter.enter(limited, 0.0) for _ in range(3)] == [None] * 3
    refusal = limiter.enter(limited, 0.0)
    assert refusal is not None
    assert refusal.retry_after_seconds == pytest.approx(20.0)
    assert limiter.headers(limited, 0.0) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    assert limiter.headers(key(), 0.0) == {}


def test_a_limit_that_is_changed_counts_what_was_used() -> None:
    limiter = Limiter()
    for _ in range(3):
        assert limiter.enter(key(requests_per_minute=4), 0.0) is None
    assert limiter.enter(key(requests_per_minute=3), 0.0) is not None
    assert limiter.enter(key(requests_per_minute=5), 0.0) is None


def test_requests_under_way_count_until_they_leave() -> None:
    limiter, limited = Limiter(), key(concurrent_requests=2)
    assert limiter.enter(limited, 0.0) is None
    assert limiter.enter(limited, 0.0) is None
    refusal = limiter.enter(limited, 0.0)
    assert refusal is not None
    assert refusal.limit is Limit.CONCURRENT
    limiter.leave("k")
    assert limiter.enter(limited, 0.0) is None


def test_tokens_come_back_after_a_day() -> None:
    limiter, limited = Limiter(), key(tokens_per_day=100)
    limiter.spend("k", 99, 10.0)
    assert limiter.enter(limited, 20.0) is None
    limiter.spend("k", 50, SLOT * 3)
    refusal = limiter.enter(limited, SLOT * 3 + 1)
    assert refusal is not None
    assert refusal.limit is Limit.TOKENS
    later = SLOT * 3 + 1 + refusal.retry_after_seconds
    assert limiter.enter(limited, later - 2) is not None
    assert limiter.enter(limited, later) is None
    assert limiter.headers(limited, later)["x-ratelimit-remaining-tokens"] == "50"


def test_what_was_used_before_the_gateway_began_counts() -> None:
    limiter = Limiter()
    limiter.spend("k", 60, 0.0)
    limiter.spend("k", 60, DAY / 2)
    assert limiter.enter(key(tokens_per_day=100), DAY / 2 + 1) is not None
    assert limiter.enter(key(tokens_per_day=100), DAY + SLOT) is None


@given(st.lists(st.tuples(st.floats(0, DAY), st.integers(0, 1000)), max_size=40))
def test_tokens_count_for_a_day_at_least_and_a_quarter_of_an_hour_longer_at_most(
    spent: list[tuple[float, int]],
) -> None:
    day, now = Day(), 0.0
    done: list[tuple[float, int]] = []
    for gap, tokens in spent:
        now += gap
        day.add(tokens, now)
        done.append((now, tokens))
        used = day.used(now)
        assert used >= sum(tokens for at, tokens in done if at > now - DAY)
        assert used <= sum(tokens for at, tokens in done if at > now - DAY - SLOT)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0ms"),
        (0.1201, "121ms"),
        (1.5, "1.5s"),
        (60, "1m0s"),
        (360.2, "6m1s"),
        (7201, "2h0m1s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_day": -1}, "tokens_per_day"),
        ({"concurrent_requests": 0}, "concurrent_requests"),
        ({"weight": 0}, "weight"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        KeyLimits(**limits)
    assert caught.value.details["field"] == field


def test_a_secret_is_long_random_and_kept_as_its_digest_alone() -> None:
    (one, secret), (two, other) = (issue("a", KeyLimits(), 5.9) for _ in range(2))
    assert secret != other
    assert one.key_id != two.key_id
    assert len(secret) >= 43
    assert one.digest == digest_of(secret)
    assert one.created_unix == 5
    assert secret not in repr(one)
    assert fixed_key("x", "api-key").digest not in repr(fixed_key("x", "api-key"))
    with pytest.raises(InvalidArgumentError, match="name"):
        issue("a b", KeyLimits(), 0)
