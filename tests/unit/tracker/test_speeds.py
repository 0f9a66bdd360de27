import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.tracker.speeds import (
    CHUNK_ROWS,
    LONE_SECONDS,
    NODE_SECONDS,
    Hop,
    Measured,
    Part,
    Speed,
    first_token_seconds,
    fitted,
    parts_of,
    token_seconds,
)

SPEED = Speed(1000.0, 500.0, 0.1, 0.5, 100.0, 0.2, 0.01, 0.02)
RATES = st.floats(1e6, 1e12)
STEPS = st.floats(0, 0.01)


@given(RATES, RATES, RATES, STEPS, STEPS, st.floats(0.3, 1.0))
def test_what_steps_were_made_of_is_found_again(rate, output, chunk, step, chunk_step, alone):
    def took(layer_bytes: int, output_bytes: int = 0) -> Measured:
        rested = step + layer_bytes / rate + output_bytes / output
        chunked = chunk_step + layer_bytes / chunk + output_bytes / output
        return Measured(layer_bytes, rested, rested * alone, chunked, output_bytes)

    # Output and short range take time that can be told beside the others'.
    speed = fitted(took(1 << 28), took(1 << 30), took(1 << 28, 1 << 30))
    assert speed.bytes_per_second == pytest.approx(rate, rel=1e-3)
    assert speed.chunk_bytes_per_second == pytest.approx(chunk, rel=1e-3)
    assert speed.step_seconds == pytest.approx(step, abs=1e-3 * (step + (1 << 28) / rate))
    assert speed.alone == pytest.approx(alone)
    assert (speed.node_seconds, speed.lone_seconds) == (NODE_SECONDS, LONE_SECONDS)


def test_where_a_longer_range_takes_no_longer_all_is_put_down_to_the_bytes():
    short, long = Measured(10, 0.5, 0.5, 1.0), Measured(100, 0.4, 0.4, 0.9)
    speed = fitted(short, long, Measured(10, 0.5, 0.5, 1.0, 50))
    assert speed.bytes_per_second == pytest.approx(250.0)
    assert speed.step_seconds == 0.0
    assert speed.chunk_bytes_per_second == pytest.approx(100 / 0.9)


def test_a_tail_that_takes_no_longer_without_its_output_has_the_layers_rate():
    speed = fitted(Measured(10, 0.1, 0.1, 1), Measured(100, 1, 1, 10), Measured(10, 0.1, 0.1, 1, 5))
    assert speed.output_bytes_per_second == speed.bytes_per_second


def test_a_lone_machine_doesnt_pause_and_packs_nothing():
    assert SPEED.token_seconds(100, 50, lone=False) == pytest.approx(0.1 + 0.1 + 0.1 + 0.01)
    assert SPEED.token_seconds(100, 50, lone=True) == pytest.approx(0.3 * 0.5 + 0.02)
    assert Part(SPEED, 100, 50).engine_seconds(lone=False) == pytest.approx(0.3)


def test_a_token_goes_around_and_comes_back_without_a_row():
    parts = (Part(SPEED, 100), Part(SPEED, 100, 50))
    hops = (Hop(1.0, 10.0), Hop(2.0, 10.0))
    assert token_seconds(parts, hops, 40) == pytest.approx(0.21 + 0.31 + 1.0 + 4.0 + 2.0)
    assert token_seconds((Part(SPEED, 100, 50),), (), 40) == pytest.approx(0.17)


def test_a_prompts_chunks_are_computed_one_behind_the_other():
    parts = (Part(SPEED, 100), Part(SPEED, 100, 50))
    hops = (Hop(0.0, 1e12), Hop(0.0, 1e12))
    chunk = 0.2 + 1.0 + 0.01
    two = first_token_seconds(parts, hops, 4, 2 * CHUNK_ROWS)
    # The tail has a row of output in every chunk, so that it's the slower one.
    assert two == pytest.approx(chunk + 2 * (chunk + 0.1))
    three = first_token_seconds(parts, hops, 4, 3 * CHUNK_ROWS)
    assert three == pytest.approx(chunk + 3 * (chunk + 0.1))


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), min_size=1, max_size=4),
    st.integers(1, 9 * CHUNK_ROWS),
    st.floats(0, 3),
)
def test_a_prompt_takes_what_its_chunks_take_one_by_one(sizes, tokens, latency):
    parts = [Part(SPEED, layers, output) for layers, output in sizes]
    hops = [Hop(latency, 300.0)] * len(parts)
    done = [latency * len(parts) if len(parts) > 1 else 0.0] * len(parts)
    for start in range(0, tokens, CHUNK_ROWS):
        rows, arrives = min(CHUNK_ROWS, tokens - start), done[0]
        for number, part in enumerate(parts):
            takes = part.speed.prompt_seconds(rows, part.layer_bytes, part.output_bytes)
            done[number] = max(done[number], arrives) + takes
            arrives = done[number] + latency + rows * 4 / 300.0
    back = latency if len(parts) > 1 else 0.0
    assert first_token_seconds(parts, hops, 4, tokens) == pytest.approx(done[-1] + back)


def test_opening_goes_around_once_and_rows_take_their_time_on_the_link():
    parts = (Part(SPEED, 0), Part(SPEED, 0))
    slow = (Hop(1.0, 4.0 * CHUNK_ROWS), Hop(2.0, 1e12))
    found = first_token_seconds(parts, slow, 4, CHUNK_ROWS)
    chunk = 0.2 + 0.01
    assert found == pytest.approx(3.0 + chunk + 1.0 + 1.0 + chunk + 2.0)


@pytest.mark.parametrize("rows", [1, 5, CHUNK_ROWS])
def test_a_short_chunk_lies_between_one_row_and_a_whole_chunk(rows):
    share = (rows - 1) / (CHUNK_ROWS - 1)
    expected = 0.2 + share * (1.2 - 0.2) + 0.01
    assert SPEED.prompt_seconds(rows, 100, 0) == pytest.approx(expected)


def test_a_prompt_isnt_predicted_of_machines_that_were_measured_without_one():
    assert first_token_seconds((Part(Speed(1.0, 1.0), 1),), (), 4, 8) is None


def test_parts_have_their_layers_and_the_tail_has_the_output():
    held = [(LayerRange(0, 1), SPEED), (LayerRange(1, 3), SPEED)]
    assert parts_of((1, 2, 4), 9, held) == (Part(SPEED, 1), Part(SPEED, 6, 9))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"bytes_per_second": -1.0}, "bytes_per_second"),
        ({"bytes_per_second": 1.0}, "output_bytes_per_second"),
        ({"step_seconds": float("inf")}, "step_seconds"),
        ({"alone": 0.0}, "alone"),
    ],
)
def test_a_speed_that_cant_be_is_refused_by_its_field(values, field):
    with pytest.raises(InvalidArgumentError) as refused:
        Speed(**values)
    assert refused.value.details["field"] == field


def test_a_step_that_takes_no_time_is_refused():
    with pytest.raises(InvalidArgumentError, match="no time"):
        fitted(Measured(1, 0, 0, 0), Measured(2, 1, 1, 1), Measured(1, 1, 1, 1))
