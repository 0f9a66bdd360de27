"""How much of a prompt an earlier session's cache may stand for, without changing a token.

A cache is as good as a fresh one up to a position if every position before it was computed with the
bits that a fresh prefill of the new prompt would give. That holds for whole chunks of the earlier
prompt; and, where the chain's ``exact_pieces`` say that bits don't depend on borders, for all steps
that had enough rows. Pure: token ids in, a number out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.domain.ids import SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import Hop
from meshnet.domain.recipe import Fingerprint

Pieces = tuple[int, int]
"""See ``EngineCapabilities.exact_pieces``."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where caches are: prefixes are shared along one chain, with one boundary, alone."""

    hops: tuple[Hop, ...]
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a head knows of a session whose cache the chain keeps."""

    key: SessionKey
    route: Route
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    """Those of the tokens after the prompt whose rows were computed."""
    pieces: Pieces | None
    """Of the whole chain."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens that the cache holds."""
        return self.prompt + self.generated

    def good_tokens(self, chunk_tokens: int) -> int:
        """How many of the first tokens any longer prompt's fresh prefill would compute alike."""
        whole, rest = divmod(len(self.prompt), chunk_tokens)
        if self.pieces is None or chunk_tokens > self.pieces[1]:
            return whole * chunk_tokens
        least = self.pieces[0]
        if rest and rest < least:
            return whole * chunk_tokens
        # A generated token's step has one row, a few if guesses were right.
        return len(self.tokens) if least == 1 else len(self.prompt)


@dataclass(frozen=True, slots=True)
class Reuse:
    """A fork that a prompt may begin with."""

    source: SessionKey
    tokens: int


def fork_of(reuse: Reuse) -> CacheExpectation:
    """What the first step of a session that reuses a cache expects."""
    return CacheExpectation(CacheMode.FORK, reuse.tokens, reuse.source)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal elements both begin."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def reusable_tokens(prompt: tuple[int, ...], prefix: Prefix, chunk_tokens: int) -> int:
    """How many of the prompt's tokens needn't be computed; at least one must be.

    The rest is computed from there on with the borders that a fresh prefill has.
    """
    shared = min(common_length(prompt, prefix.tokens), prefix.good_tokens(chunk_tokens))
    shared = min(shared, len(prompt) - 1)
    whole = shared // chunk_tokens * chunk_tokens
    if prefix.pieces is None or chunk_tokens > prefix.pieces[1]:
        return whole
    least = prefix.pieces[0]
    # The chunk in which the reuse ends, as a fresh prefill has it; its rest is a step of its own.
    chunk = min(chunk_tokens, len(prompt) - whole)
    if chunk < least:
        return whole
    return max(whole, min(shared, whole + chunk - least))


def best_reuse(
    prompt: tuple[int, ...], prefixes: Sequence[Prefix], route: Route, chunk_tokens: int
) -> Reuse | None:
    """The kept prefix that saves the most, of equals the latest, which is the likeliest to be still
    there on all nodes; None if none saves at least a chunk's tokens."""
    found = [
        Reuse(prefix.key, reusable_tokens(prompt, prefix, chunk_tokens))
        for prefix in reversed(prefixes)
        if prefix.route == route
    ]
    best = max(found, key=lambda reuse: reuse.tokens, default=None)
    return best if best is not None and best.tokens >= chunk_tokens else None


def joined_pieces(one: Pieces | None, other: Pieces | None) -> Pieces | None:
    """What holds on both."""
    if one is None or other is None:
        return None
    least, most = max(one[0], other[0]), min(one[1], other[1])
    return (least, most) if least <= most else None
