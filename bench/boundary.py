"""What does a narrower boundary cost in exactness?

    python -m bench.boundary

Three shards of each real model in one process, rows narrowed and widened at both seams as nodes do
it, against the unsplit model: every position of a text is given the text's own tokens before it,
and its logits are compared. The text is the documentation that comes with Python (PSF licence).
KL divergence is that of the split model's distribution from the unsplit one's, in nats. float32
must give the same bits, or the bench stops. A type is refused where a value is beyond its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from bench.report import Column, Report, Table, conditions, finish, output_parser
from bench.setup import even_ranges, model_path
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.domain.recipe import MAX_CHUNK_TOKENS, Recipe
from meshnet.domain.tensors import RESIDUAL, DType
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.wire.narrow import rows_of, tensor_of

NAME = "boundary"
MODELS = ("smollm2", "gemma3")
SHARDS = 3
TOKENS = 2000
BLOCK = 16
"""Rows compared at a time: a vocabulary of 262,144 in float64 takes 2 MiB a row."""
COLUMNS = (
    Column("boundary"),
    Column("KL mean"),
    Column("KL max"),
    Column("same greedy token, %", 2),
    Column("bytes a value", 4),
)
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a split model's distributions are from the unsplit one's."""

    divergences: tuple[float, ...]
    """A position each, in nats."""
    same_choice: tuple[bool, ...]
    """Whether the likeliest token is the same one."""
    identical: bool
    """Whether all logits are equal bit for bit."""
    refused: str = ""
    """Why the type can't carry the model's rows, where it can't."""

    def __add__(self, other: Distance) -> Distance:
        return Distance(
            self.divergences + other.divergences,
            self.same_choice + other.same_choice,
            self.identical and other.identical,
            self.refused or other.refused,
        )


NO_DISTANCE = Distance((), (), identical=True)


def distance(unsplit: Floats, split: Floats) -> Distance:
    """Compare logits, both of shape (positions, vocabulary)."""
    if unsplit.tobytes() == split.tobytes():
        return Distance((0.0,) * len(unsplit), (True,) * len(unsplit), identical=True)
    divergences: list[float] = []
    for start in range(0, len(unsplit), BLOCK):
        p, q = (_log_softmax(each[start : start + BLOCK]) for each in (unsplit, split))
        divergences += (np.exp(p) * (p - q)).sum(axis=-1).tolist()
    same = unsplit.argmax(axis=-1) == split.argmax(axis=-1)
    return Distance(tuple(divergences), tuple(same.tolist()), identical=False)


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def compare(
    path: Path, cache: Path, count: int, dtypes: Sequence[DType] = tuple(DType)
) -> dict[DType, Distance]:
    """The distances over ``count`` tokens of text, cut evenly in three."""
    tokens = text_tokens(path, count)
    layers = describe(read_index(path)).total_layers
    found = dict.fromkeys(dtypes, NO_DISTANCE)
    with ExitStack() as stack:
        (unsplit,) = _load(stack, path, cache, [LayerRange(0, layers)], count, 1)
        chain = _load(stack, path, cache, even_ranges(layers, SHARDS), count, len(dtypes))
        for start in range(0, count, MAX_CHUNK_TOKENS):
            chunk = tokens[start : start + MAX_CHUNK_TOKENS]
            logits = unsplit.decode([Rows(0, start, chunk, outputs=len(chunk))]).copy()
            for sequence, dtype in enumerate(dtypes):
                if not found[dtype].refused:
                    found[dtype] += _step(chain, Rows(sequence, start, chunk), dtype, logits)
    return found


def _step(chain: Sequence[LlamaContext], rows: Rows, dtype: DType, unsplit: Floats) -> Distance:
    try:
        return distance(unsplit, _through(chain, rows, dtype))
    except InvalidArgumentError as error:
        return replace(NO_DISTANCE, identical=False, refused=error.message)


def text_tokens(path: Path, count: int) -> tuple[int, ...]:
    """The first tokens of the text."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    with Vocabulary.load(path) as vocabulary:
        tokens = vocabulary.tokenize(text[: count * 20], add_special=True, parse_special=False)
    if len(tokens) < count:
        raise SystemExit(f"the text has {len(tokens)} tokens, fewer than {count}")
    return tokens[:count]


def _load(
    stack: ExitStack,
    path: Path,
    cache: Path,
    ranges: Sequence[LayerRange],
    positions: int,
    sequences: int,
) -> list[LlamaContext]:
    contexts = []
    for layers in ranges:
        cut = SliceCache(cache).ensure(path, layers)
        recipe = Recipe(cut.model_digest, "libllama", NAME)
        limits = EngineLimits(positions, sequences)
        request = LoadRequest(cut.path, layers.start, layers.end, cut.total_layers, recipe, limits)
        context = LlamaContext(request, max_outputs=MAX_CHUNK_TOKENS)
        stack.callback(context.close)
        contexts.append(context)
    return contexts


def _through(chain: Sequence[LlamaContext], rows: Rows, dtype: DType) -> Floats:
    """The logits after each row, with both seams of ``dtype``. Sequences don't touch each other."""
    out = chain[0].decode([rows])
    for context in chain[1:]:
        crossed = rows_of(tensor_of(RESIDUAL, out, dtype))
        outputs = 0 if context.taps else rows.count
        out = context.decode([Rows(rows.sequence, rows.position, (), crossed, outputs)])
    return out


def _lines(found: dict[DType, Distance]) -> Iterator[tuple[str | float, ...]]:
    if not found[DType.FLOAT32].identical:
        raise SystemExit("float32 boundaries don't give the unsplit model's bits")
    for dtype, each in found.items():
        if each.refused:
            yield (dtype.value, "refused", "refused", "-", dtype.byte_length(32) / 32)
            continue
        agreed = 100 * sum(each.same_choice) / len(each.same_choice)
        mean, most = np.mean(each.divergences), max(each.divergences)
        shown = ("0", "0") if each.identical else (f"{mean:.2e}", f"{most:.2e}")
        yield (dtype.value, *shown, agreed, dtype.byte_length(32) / 32)


def main() -> None:
    parser = output_parser(NAME, __doc__)
    parser.add_argument("--model", action="append", help="smollm2, gemma3, or a GGUF file")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="how many positions")
    options = parser.parse_args()
    cache = Settings.from_environment().cache
    tables = []
    for name in options.model or MODELS:
        found = compare(model_path(name), cache, options.tokens)
        caption = f"{name}, {options.tokens} positions:"
        tables.append(Table(caption, COLUMNS, tuple(_lines(found))))
    about = (
        conditions("bench.boundary"),
        f"{SHARDS} shards, teacher-forced, against the unsplit model; KL divergence in nats.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    main()
