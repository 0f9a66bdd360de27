"""The choice of a token: a pure function of logits, history, parameters, seed and position.

No generator's state runs from one token to the next, so a replay after a failure, a retry or a
speculative check chooses the same token. The filters and their order are those of llama.cpp's
sampler chain (``src/llama-sampler.cpp``): logit bias, penalties, top-k, top-p, min-p, temperature.
Two things differ from it. Where equal logits straddle a limit, the lowest ids are kept, while
llama.cpp keeps whichever its unstable sort puts first. And it computes in float32 what is computed
in float64 here, so a token right at the top-p limit may fall on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.domain.sampling import SamplingParams, TokenLogprob

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_COLUMNS: Final = 4096
_NUCLEUS_GUESS: Final = 512

Logits = NDArray[np.float32]
Indices = NDArray[np.intp]
Weights = NDArray[np.float64]


class Allowed(Protocol):
    """Which tokens a grammar allows in one place."""

    def one(self, token_id: int) -> bool:
        """Whether it allows the token."""

    def all(self) -> NDArray[np.bool_]:
        """The same of every token, shape (n_vocab,), which takes much longer."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The chosen token and, as far as the parameters ask for them, log-probabilities.

    They are natural logarithms, of the distribution after the logit bias and before any other
    filter. ``top_logprobs`` starts with the most likely token and holds no banned one.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


def sample(
    logits: Logits,
    history: Sequence[int],
    params: SamplingParams,
    position: int,
    allowed: Allowed | None = None,
) -> Sampled:
    """Choose the token of ``position`` from ``logits`` of shape (n_vocab,), which stay unchanged.

    ``history`` holds the ids of all tokens before it, prompt included, or at least as many as
    ``params.penalty_last_n`` looks back. What isn't ``allowed`` is dropped before all filters; the
    log-probabilities are still the model's own. Raises :class:`EngineError` for logits that no
    model gives, and :class:`InvalidArgumentError` for a token id outside the vocabulary, or if
    nothing is allowed that the logit bias doesn't ban.
    """
    biased, scores = _scores(logits, history, params)
    # Where the largest is allowed, it is also the largest of those allowed.
    if allowed is not None and not (params.greedy and allowed.one(int(scores.argmax()))):
        scores = _only(scores, allowed.all())
    if params.greedy:
        token = int(scores.argmax())
    else:
        candidates, weights = _weights(scores, params)
        chosen = _draw(weights, params.seed, position)
        token = chosen if candidates is None else int(candidates[chosen])
    if not params.logprobs and not params.top_logprobs:
        return Sampled(token)
    return _with_logprobs(token, biased, params)


def distribution(
    logits: Logits, history: Sequence[int], params: SamplingParams
) -> tuple[Indices, Weights]:
    """The ids that :func:`sample` may choose, ascending, and their probabilities.

    A probability may be 0, for a banned token that no filter dropped. Raises as :func:`sample`.
    """
    scores = _scores(logits, history, params)[1]
    if params.greedy:
        return np.array([scores.argmax()]), np.ones(1)
    candidates, weights = _weights(scores, params)
    ids = np.arange(weights.size) if candidates is None else candidates
    return ids, weights / weights.sum()


def _scores(
    logits: Logits, history: Sequence[int], params: SamplingParams
) -> tuple[Logits, Logits]:
    """Logits after the bias, and after the penalties as well."""
    if logits.ndim != 1 or logits.dtype != np.float32 or not logits.size:
        raise EngineError(
            f"logits must be one row of float32, but are {logits.dtype} of shape {logits.shape}"
        )
    # Of values that aren't numbers argmax gives the first: one pass for both questions.
    peak = float(logits[logits.argmax()])
    if not math.isfinite(peak):
        raise EngineError(
            f"the model gave logits without a finite maximum ({peak}); its file or its "
            f"computation is at fault"
        )
    biased = _with_bias(logits, params.logit_bias) if params.logit_bias else logits
    if not params.penalises:
        return biased, biased
    return biased, _with_penalties(biased, history, params)


def _only(scores: Logits, allowed: NDArray[np.bool_]) -> Logits:
    kept = np.where(allowed, scores, np.float32(-np.inf))
    if np.isneginf(kept.max()):
        raise InvalidArgumentError(
            "grammar", "it leaves no token of the vocabulary to go on with; it can't be followed"
        )
    return kept


def _with_bias(logits: Logits, bias: Mapping[int, float]) -> Logits:
    ids = np.fromiter(bias.keys(), np.int64, len(bias))
    _require_ids("logit_bias", ids, logits.size)
    added = _finite(np.fromiter(bias.values(), np.float64, len(bias)))
    biased = logits.copy()
    biased[ids] = _finite(biased[ids].astype(np.float64) + added)
    if np.isneginf(biased.max()):
        raise InvalidArgumentError("logit_bias", "it bans every token; leave at least one")
    return biased


def _with_penalties(logits: Logits, history: Sequence[int], params: SamplingParams) -> Logits:
    """llama.cpp's penalties sampler: repetition first, then frequency and presence."""
    recent = history if params.penalty_last_n < 0 else history[-params.penalty_last_n :]
    ids, counts = np.unique(np.asarray(recent, dtype=np.int64), return_counts=True)
    _require_ids("history", ids, logits.size)
    scores = logits.copy()
    touched = scores[ids].astype(np.float64)
    repeat = min(params.repeat_penalty, _FLOAT32_MAX)
    with np.errstate(over="ignore"):
        repeated = np.where(touched <= 0, touched * repeat, touched / repeat)
    subtract = counts * params.frequency_penalty + params.presence_penalty
    scores[ids] = _finite(_finite(repeated) - subtract)
    return scores


def _finite(values: NDArray[np.float64]) -> Logits:
    """In float32, with values beyond its range at its limits; ``-inf``, a ban, stays."""
    limited = np.clip(values, -_FLOAT32_MAX, _FLOAT32_MAX)
    return np.where(np.isneginf(values), values, limited).astype(np.float32)


def _require_ids(name: str, ids: NDArray[np.int64], n_vocab: int) -> None:
    outside = ids[(ids < 0) | (ids >= n_vocab)]
    if outside.size:
        raise InvalidArgumentError(
            name, f"the vocabulary has no token {outside[0]}, only 0 to {n_vocab - 1}"
        )


def _weights(scores: Logits, params: SamplingParams) -> tuple[Indices | None, Weights]:
    """The candidates' ids in ascending order, None for all, and unnormalised probabilities."""
    peak = scores.max()
    ids: Indices | None = None
    if params.top_k and params.top_k < scores.size:
        ids = _largest(scores, params.top_k)
    if params.top_p < 1:
        values = scores if ids is None else scores[ids]
        inside = _largest(values, _nucleus_size(values, params.top_p))
        ids = inside if ids is None else ids[inside]
    if params.min_p > 0:
        values = scores if ids is None else scores[ids]
        inside = np.flatnonzero(values >= peak + np.log(np.float32(params.min_p)))
        ids = inside if ids is None else ids[inside]
    values = scores if ids is None else scores[ids]
    with np.errstate(over="ignore"):
        return ids, np.exp((values.astype(np.float64) - peak) / params.temperature)


def _largest(values: Logits, count: int) -> Indices:
    """Indices of the ``count`` largest values, ascending; the lowest among equals."""
    near = np.flatnonzero(values >= _lower_bound(values, count))
    if near.size <= count:
        return near
    kept = values[near]
    smallest = np.partition(kept, kept.size - count)[kept.size - count]
    above = near[kept > smallest]
    equal = near[kept == smallest][: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _lower_bound(values: Logits, count: int) -> np.float32:
    """A value that at least ``count`` values reach, found in one quick pass.

    Of ``columns`` disjoint sets of values, take the largest of each: the ``count``-th largest of
    these can't lie above the ``count``-th largest of all.
    """
    columns = max(_COLUMNS, 4 * count)
    rows = values.size // columns
    if rows < 2:
        return np.float32(-np.inf)
    largest = values[: rows * columns].reshape(rows, columns).max(axis=0)
    bound: np.float32 = np.partition(largest, columns - count)[columns - count]
    return bound


def _nucleus_size(values: Logits, top_p: float) -> int:
    """How many of the largest values it takes until their probabilities sum up to ``top_p``."""
    peak = values.max()
    wanted = top_p * np.exp(values.astype(np.float64) - peak).sum()
    # Sorting a few is nearly always enough, and much quicker than sorting a whole vocabulary.
    for size in (_NUCLEUS_GUESS, values.size):
        head = np.sort(values[_largest(values, size)])[::-1]
        reached = np.exp(head.astype(np.float64) - peak).cumsum()
        kept = int(reached.searchsorted(wanted)) + 1
        if kept <= head.size:
            return kept
    return values.size


def _draw(weights: Weights, seed: int, position: int) -> int:
    """Index drawn with probability proportional to its weight, keyed by seed and position.

    Philox is counter-based (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"),
    and numpy guarantees its raw stream. 53 of the 64 bits make a float64 in [0, 1).
    """
    if position < 0:
        raise InvalidArgumentError("position", f"{position} must be at least 0")
    bits = int(np.random.Philox(key=seed, counter=position).random_raw())
    reached = weights.cumsum()
    total = reached[-1]
    # Rounding must not reach the total, behind which there is no candidate.
    aim = min((bits >> 11) * 2.0**-53 * total, np.nextafter(total, 0.0))
    return int(reached.searchsorted(aim, side="right"))


def _with_logprobs(token: int, biased: Logits, params: SamplingParams) -> Sampled:
    peak = biased.max()
    logsum = peak + np.log(np.exp(biased.astype(np.float64) - peak).sum())
    top: tuple[TokenLogprob, ...] = ()
    if params.top_logprobs:
        ids = _largest(biased, params.top_logprobs)
        ids = ids[np.argsort(-biased[ids], kind="stable")]
        top = tuple(
            TokenLogprob(int(i), float(biased[i] - logsum)) for i in ids if biased[i] > -np.inf
        )
    own = float(biased[token] - logsum) if params.logprobs else None
    return Sampled(token, own, top)
