"""Our candidates and probabilities against those of libllama's own sampler chain.

libllama computes in float32 and sorts unstably, so two things are left open: which of several equal
logits survive a limit, and a token that lies within rounding of the top-p or min-p limit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshnet.domain.sampling import SamplingParams
from meshnet.engine.sampling import distribution

ROUNDING = 1e-5
# Few tokens, so that they occur several times.
HISTORY = st.lists(st.integers(0, 11), max_size=90)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 40, 300]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.1, 0.7]),
    repeat_penalty=st.sampled_from([1.0, 1.1, 1.8, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25, 1.0]),
    penalty_last_n=st.sampled_from([0, 1, 8, 64, -1]),
    logit_bias=st.dictionaries(
        st.integers(0, 255), st.sampled_from([-np.inf, -3.0, 0.5, 8.0]), max_size=4
    ),
)


def libllama_distribution(
    logits: NDArray[np.float32], history: Sequence[int], params: SamplingParams
) -> dict[int, float]:
    """Token ids and probabilities that libllama's chain leaves, in the documented order."""
    n_vocab = logits.size
    bias = (llama_cpp.llama_logit_bias * len(params.logit_bias))(
        *(llama_cpp.llama_logit_bias(*item) for item in params.logit_bias.items())
    )
    last = len(history) if params.penalty_last_n < 0 else params.penalty_last_n
    penalties = llama_cpp.llama_sampler_init_penalties(
        n_vocab,
        last,
        params.repeat_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    for token in history:
        llama_cpp.llama_sampler_accept(penalties, token)
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in (
        llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), bias),
        penalties,
        llama_cpp.llama_sampler_init_top_k(params.top_k),
        llama_cpp.llama_sampler_init_top_p(params.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(params.min_p, 1),
        llama_cpp.llama_sampler_init_temp(params.temperature),
        # The last one turns the logits into probabilities; its own draw isn't looked at.
        llama_cpp.llama_sampler_init_dist(0),
    ):
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    candidates = (llama_cpp.llama_token_data * n_vocab)(
        *(llama_cpp.llama_token_data(token, value) for token, value in enumerate(logits.tolist()))
    )
    array = llama_cpp.llama_token_data_array(candidates, n_vocab, -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    left = {int(one.id): float(one.p) for one in array.data[: array.size]}
    llama_cpp.llama_sampler_free(chain)
    return left


def assert_same(
    logits: NDArray[np.float32], history: Sequence[int], params: SamplingParams
) -> None:
    ids, probabilities = distribution(logits, history, params)
    ours = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    theirs = libllama_distribution(logits, history, params)
    if ours.keys() == theirs.keys():
        for token, probability in theirs.items():
            assert ours[token] == pytest.approx(probability, rel=1e-3, abs=ROUNDING)
        return
    # Otherwise the sets must be those of limits that differ by no more than rounding.
    nearby = []
    for sign in (-1, 1):
        moved = SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=min(max(params.top_p * (1 + sign * ROUNDING), 1e-9), 1.0),
            min_p=params.min_p * (1 - sign * ROUNDING),
            repeat_penalty=params.repeat_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            penalty_last_n=params.penalty_last_n,
            logit_bias=params.logit_bias,
        )
        nearby.append(set(distribution(logits, history, moved)[0].tolist()))
    assert nearby[0] <= theirs.keys() <= nearby[1]


@settings(deadline=None, max_examples=300)
@given(
    PARAMS,
    st.integers(0, 2**32),
    st.sampled_from([1.0, 4.0, 10.0]),
    HISTORY,
)
def test_the_same_candidates_with_the_same_probabilities(
    params: SamplingParams, seed: int, spread: float, history: list[int]
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, 256).astype(np.float32)
    assert_same(logits, history, params)


@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.9999])
@pytest.mark.parametrize("top_k", [0, 40, 2000])
def test_the_same_candidates_of_a_large_vocabulary(top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(top_k).normal(0, 3, 32_003).astype(np.float32)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=0.001, temperature=0.7)
    assert_same(logits, (), params)


@pytest.mark.parametrize("min_p", [0.0, 0.3])
@pytest.mark.parametrize("top_k", [0, 1, 7, 20, 63])
def test_where_logits_are_equal_as_many_survive_with_the_same_values(
    top_k: int, min_p: float
) -> None:
    # Which of the equal ones survive differs: ours are the lowest ids, libllama's any.
    logits = np.random.default_rng(top_k).integers(-2, 3, 64).astype(np.float32)
    params = SamplingParams(top_k=top_k, min_p=min_p)
    ids, probabilities = distribution(logits, (), params)
    theirs = libllama_distribution(logits, (), params)
    assert sorted(logits[ids]) == sorted(logits[list(theirs)])
    np.testing.assert_allclose(
        np.sort(probabilities), np.sort(list(theirs.values())), rtol=1e-4, atol=1e-7
    )


@settings(deadline=None)
@given(PARAMS, st.integers(0, 2**32), HISTORY)
def test_greedy_takes_libllamas_most_likely_token(
    params: SamplingParams, seed: int, history: list[int]
) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, 256).astype(np.float32)
    theirs = libllama_distribution(logits, history, params)
    greedy = SamplingParams(
        temperature=0,
        repeat_penalty=params.repeat_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        penalty_last_n=params.penalty_last_n,
        logit_bias=params.logit_bias,
    )
    [token] = distribution(logits, history, greedy)[0].tolist()
    assert theirs[token] == pytest.approx(max(theirs.values()), rel=1e-5)
