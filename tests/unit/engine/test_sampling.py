"""Sampling against a plain reading of its rules, over random logits and parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.sampling import distribution, sample

N_VOCAB = 97


def some_logits(seed: int, spread: float, decimals: int, banned: float) -> list[float]:
    generator = np.random.default_rng(seed)
    values = generator.normal(0, spread, N_VOCAB).round(decimals).astype(np.float32)
    values[generator.random(N_VOCAB) < banned] = -np.inf
    values[seed % N_VOCAB] = spread
    return [float(value) for value in values]


# Rounding to few distinct values makes ties happen at every limit.
LOGITS = st.builds(
    some_logits,
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0, 20.0]),
    decimals=st.sampled_from([0, 1, 5]),
    banned=st.sampled_from([0.0, 0.3, 1.0]),
)
TOKEN = st.integers(0, N_VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, N_VOCAB + 3),
    top_p=st.sampled_from([1e-6, 0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    penalty_last_n=st.integers(-1, 6),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.dictionaries(TOKEN, st.sampled_from([-math.inf, -2.0, 5.0]), max_size=4),
    top_logprobs=st.integers(0, 6),
    logprobs=st.booleans(),
)
# Few tokens, so that they occur several times.
HISTORY = st.lists(st.integers(0, 5), max_size=12)
PINNED = [4973, 14749, 6688, 12072]


def scores_by_the_rules(
    logits: Sequence[float], history: Sequence[int], params: SamplingParams
) -> list[float]:
    scores = [float(value) + params.logit_bias.get(i, 0.0) for i, value in enumerate(logits)]
    count = len(history) if params.penalty_last_n < 0 else params.penalty_last_n
    for token, times in Counter(history[max(len(history) - count, 0) :]).items():
        divided = scores[token] > 0
        repeat = params.repeat_penalty
        scores[token] = scores[token] / repeat if divided else scores[token] * repeat
        scores[token] -= times * params.frequency_penalty + params.presence_penalty
    return [float(np.float32(score)) for score in scores]


def kept_by_the_rules(scores: Sequence[float], params: SamplingParams) -> list[int]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    peak = scores[order[0]]
    order = order[: params.top_k or None]
    if params.top_p < 1:
        weights = [math.exp(scores[i] - peak) for i in order]
        wanted, reached, count = params.top_p * math.fsum(weights), 0.0, 0
        while count < len(order) and (count == 0 or reached < wanted * (1 - 1e-12)):
            reached += weights[count]
            count += 1
        order = order[:count]
    if params.min_p > 0:
        limit = np.float32(peak) + np.log(np.float32(params.min_p))
        order = [i for i in order if np.float32(scores[i]) >= limit]
    return order


def array(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@given(LOGITS, HISTORY, PARAMS)
def test_candidates_and_probabilities_follow_the_documented_rules(
    logits: list[float], history: list[int], params: SamplingParams
) -> None:
    scores = scores_by_the_rules(logits, history, params)
    if max(scores) == -math.inf:
        with pytest.raises(InvalidArgumentError, match="logit_bias"):
            sample(array(logits), history, params, 0)
        return
    ids, probabilities = distribution(array(logits), history, params)
    if params.greedy:
        assert list(ids) == [max(range(N_VOCAB), key=lambda i: (scores[i], -i))]
        return
    kept = kept_by_the_rules(scores, params)
    assert list(ids) == sorted(kept)
    peak = max(scores)
    weights = np.array([math.exp((scores[i] - peak) / params.temperature) for i in sorted(kept)])
    np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-5, atol=1e-12)


@given(LOGITS, HISTORY, PARAMS, st.integers(0, 2**40))
def test_a_draw_is_repeatable_possible_and_leaves_the_logits_alone(
    logits: list[float], history: list[int], params: SamplingParams, position: int
) -> None:
    given_logits = array(logits)
    given_logits.flags.writeable = False
    if max(scores_by_the_rules(logits, [], params)) == -math.inf:
        return
    first = sample(given_logits, history, params, position)
    assert sample(given_logits.copy(), tuple(history), params, position) == first
    ids, probabilities = distribution(given_logits, history, params)
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True))[first.token_id] > 0


@given(LOGITS, HISTORY, PARAMS)
def test_logprobs_are_those_after_the_bias_and_before_the_filters(
    logits: list[float], history: list[int], params: SamplingParams
) -> None:
    biased = scores_by_the_rules(logits, [], params)
    if max(biased) == -math.inf:
        return
    peak = max(biased)
    total = peak + math.log(math.fsum(math.exp(value - peak) for value in biased))
    chosen = sample(array(logits), history, params, 7)
    if params.logprobs:
        assert chosen.logprob == pytest.approx(biased[chosen.token_id] - total, abs=1e-5)
    else:
        assert chosen.logprob is None
    order = sorted(range(N_VOCAB), key=lambda i: (-biased[i], i))[: params.top_logprobs]
    expected = [i for i in order if biased[i] > -math.inf]
    assert [top.token_id for top in chosen.top_logprobs] == expected
    for top in chosen.top_logprobs:
        assert top.logprob == pytest.approx(biased[top.token_id] - total, abs=1e-5)


@pytest.mark.parametrize(
    ("last_n", "scores"),
    [
        (0, [2.0, -1.0, 0.0, 3.0]),
        (1, [2.0 / 2 - 0.5 - 0.25, -1.0, 0.0, 3.0]),
        (4, [2.0 / 2 - 3 * 0.5 - 0.25, -1.0 * 2 - 0.5 - 0.25, 0.0, 3.0]),
        (9, [2.0 / 2 - 3 * 0.5 - 0.25, -1.0 * 2 - 0.5 - 0.25, -0.75, 3.0 / 2 - 0.75]),
        (-1, [2.0 / 2 - 3 * 0.5 - 0.25, -1.0 * 2 - 0.5 - 0.25, -0.75, 3.0 / 2 - 0.75]),
    ],
)
def test_penalties_count_the_last_tokens(last_n: int, scores: list[float]) -> None:
    params = SamplingParams(
        repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, penalty_last_n=last_n
    )
    history = (3, 2, 0, 0, 1, 0)
    _, probabilities = distribution(array([2.0, -1.0, 0.0, 3.0]), history, params)
    weights = np.exp(scores)
    np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=11),
        SamplingParams(seed=11, temperature=0.6),
        SamplingParams(seed=2**64 - 1, top_k=4, top_p=0.9),
    ],
)
def test_draws_over_positions_have_the_distribution_they_claim(params: SamplingParams) -> None:
    logits = array([0.5, 2.0, -1.0, 1.5, 0.0, 1.0, -0.5, 0.25])
    ids, probabilities = distribution(logits, (), params)
    draws = 6000
    counts = Counter(sample(logits, (), params, position).token_id for position in range(draws))
    assert set(counts) == set(ids.tolist())
    observed = np.array([counts[token] for token in ids.tolist()])
    chi_square = float(((observed - draws * probabilities) ** 2 / (draws * probabilities)).sum())
    # The 99.99 % point for 7 degrees of freedom is 29.9; the draws are fixed, so this can't flake.
    assert chi_square < 29.9


def test_the_draw_depends_on_the_seed_and_on_the_position_alone() -> None:
    logits = np.zeros(1 << 14, np.float32)
    tokens = {
        sample(logits, (), SamplingParams(seed=seed), position).token_id
        for seed in range(8)
        for position in range(8)
    }
    assert len(tokens) > 60
    # numpy guarantees the raw stream of Philox, so these may never change on any machine.
    assert [sample(logits, (), SamplingParams(seed=1), p).token_id for p in range(4)] == PINNED
    # The filters that keep all leave the draw as it is.
    wide = SamplingParams(seed=1, top_k=1 << 14, min_p=1e-9)
    assert [sample(logits, (), wide, p).token_id for p in range(4)] == PINNED


@pytest.mark.parametrize("size", [4096, 8191, 20_000, 65_536, 262_144])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
def test_top_k_and_top_p_agree_with_a_full_sort_on_large_vocabularies(
    size: int, spread: float
) -> None:
    generator = np.random.default_rng(size)
    # Rounded, so that the limits fall among equal values.
    logits = (generator.normal(0, spread, size).round(1)).astype(np.float32)
    order = np.lexsort((np.arange(size), -logits))
    for top_k in (1, 40, 5000):
        ids, _ = distribution(logits, (), SamplingParams(top_k=top_k))
        np.testing.assert_array_equal(ids, np.sort(order[:top_k]))
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    for top_p in (0.1, 0.9, 0.999):
        count = int((weights.cumsum() < top_p * weights.sum() * (1 - 1e-12)).sum()) + 1
        ids, _ = distribution(logits, (), SamplingParams(top_p=top_p))
        np.testing.assert_array_equal(ids, np.sort(order[:count]))


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_logits_that_no_model_gives_are_an_engine_error(worst: float) -> None:
    logits = np.zeros(300, np.float32)
    logits[200] = worst
    for params in (SamplingParams(), SamplingParams(temperature=0)):
        with pytest.raises(EngineError, match="finite"):
            sample(logits, (), params, 0)


def test_logits_that_are_all_banned_or_misshapen_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="finite"):
        sample(np.full(5, -np.inf, np.float32), (), SamplingParams(), 0)
    with pytest.raises(EngineError, match="one row of float32"):
        sample(np.zeros((2, 5), np.float32), (), SamplingParams(), 0)
    with pytest.raises(EngineError, match="one row of float32"):
        sample(np.zeros(0, np.float32), (), SamplingParams(), 0)


def test_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    logits = np.zeros(5, np.float32)
    with pytest.raises(InvalidArgumentError, match=r"logit_bias: .* no token 5, only 0 to 4"):
        sample(logits, (), SamplingParams(logit_bias={5: 1.0}), 0)
    with pytest.raises(InvalidArgumentError, match=r"history: .* no token -1"):
        sample(logits, (1, -1), SamplingParams(repeat_penalty=1.1), 0)
    with pytest.raises(InvalidArgumentError, match="position"):
        sample(logits, (), SamplingParams(), -1)


def test_extreme_parameters_stay_finite() -> None:
    logits = array([3e38, -3e38, 0.0, 1.0])
    params = SamplingParams(
        temperature=1e-300,
        repeat_penalty=1e300,
        penalty_last_n=-1,
        logit_bias={0: 1e300, 1: -1e300},
        top_logprobs=4,
        logprobs=True,
    )
    chosen = sample(logits, (0, 1, 2, 3), params, 0)
    assert chosen.token_id in {0, 2, 3}
    assert all(math.isfinite(top.logprob) for top in chosen.top_logprobs)
    tiny = SamplingParams(repeat_penalty=5e-324, penalty_last_n=-1)
    assert sample(logits, (0, 1, 2, 3), tiny, 0).token_id in {0, 3}


class Only:
    """Allows some tokens, and counts how often all of them are asked for."""

    def __init__(self, tokens: set[int]) -> None:
        self._mask = np.isin(np.arange(N_VOCAB), list(tokens))
        self.whole = 0

    def one(self, token_id: int) -> bool:
        return bool(self._mask[token_id])

    def all(self) -> NDArray[np.bool_]:
        self.whole += 1
        return self._mask


@given(LOGITS, HISTORY, PARAMS, st.sets(TOKEN, min_size=1), st.integers(0, 2**20))
def test_what_isnt_allowed_is_as_if_it_were_banned(logits, history, params, tokens, position):
    row = np.array(logits, np.float32)
    allowed = Only(tokens)
    try:
        chosen = sample(row, history, params, position, allowed)
    except InvalidArgumentError as refused:
        assert refused.details["field"] in ("grammar", "logit_bias")
        return
    # Of the unconstrained largest, one question says that it is allowed.
    free = sample(row, history, params, position)
    assert chosen.token_id in tokens
    assert allowed.whole == (not (params.greedy and free.token_id in tokens))
    banned = {token: -math.inf for token in range(N_VOCAB) if token not in tokens}
    bias = params.logit_bias | banned
    whole = sample(row, history, replace(params, logit_bias=bias), position)
    assert chosen.token_id == whole.token_id
    # Log-probabilities are the model's own, of what isn't allowed too.
    assert chosen.top_logprobs == free.top_logprobs


def test_nothing_that_is_allowed_is_told_of_the_grammar():
    row = np.zeros(N_VOCAB, np.float32)
    with pytest.raises(InvalidArgumentError, match="grammar"):
        sample(row, [], SamplingParams(), 0, Only(set()))
