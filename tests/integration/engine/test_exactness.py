"""Which steps are found exact, and that they are, as far as a context reaches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp import exactness
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.exactness import (
    DEPTH,
    LONE_ROW_DEPTH,
    Exactness,
    depth_of_probe,
    measure_exactness,
)
from tests.support.tiny_gguf import TinyModel, build

LAYERS = 2
SESSIONS = 2
CHUNK = 64
RECIPE = Recipe(
    Digest("sha256:" + "0" * 64), "libllama", "test", flash_attention=True, chunk_tokens=CHUNK
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = TinyModel(layers=LAYERS, quantization=GGMLQuantizationType.Q8_0, seed=3)
    return build(tmp_path_factory.mktemp("model") / "tiny.gguf", kind)


def request_for(model: Path, context_length: int, *, flash_attention: bool = True) -> LoadRequest:
    recipe = replace(RECIPE, flash_attention=flash_attention)
    limits = EngineLimits(context_length, SESSIONS, threads=3)
    return LoadRequest(model, 0, LAYERS, LAYERS, recipe, limits)


def measured(request: LoadRequest) -> Exactness:
    context = LlamaContext(request, max_outputs=CHUNK)
    try:
        return measure_exactness(context, request)
    finally:
        context.close()


def last_rows(request: LoadRequest, together: int) -> bytes:
    """The logits of each session's last position, computed with so many in a batch."""
    context = LlamaContext(request, max_outputs=SESSIONS)
    past = request.limits.context_length - 1
    tokens = np.random.default_rng(1).integers(0, context.n_vocab, (SESSIONS, past + 1)).tolist()
    try:
        for session, start in np.ndindex(SESSIONS, -(-past // CHUNK)):
            part = tuple(tokens[session][start * CHUNK : min((start + 1) * CHUNK, past)])
            context.decode([Rows(session, start * CHUNK, part)])
        rows = [Rows(each, past, (tokens[each][past],), outputs=1) for each in range(SESSIONS)]
        batches = [rows[start : start + together] for start in range(0, SESSIONS, together)]
        return b"".join(context.decode(batch).tobytes() for batch in batches)
    finally:
        context.close()


@given(st.integers(1, 10_000))
def test_rows_are_compared_where_lone_ones_are_computed_in_another_way(context_length: int) -> None:
    depth = depth_of_probe(context_length)
    assert 0 <= depth < context_length
    assert depth <= DEPTH
    assert depth >= context_length // 2 or depth == DEPTH
    assert context_length <= LONE_ROW_DEPTH or depth >= LONE_ROW_DEPTH


@pytest.mark.parametrize("context_length", [256, 257, 300])
def test_sessions_found_exact_are_so_at_the_end_of_the_context(
    model: Path, context_length: int
) -> None:
    request = request_for(model, context_length)
    found = measured(request)
    assert found.complete
    assert last_rows(request, found.sessions) == last_rows(request, 1)


@pytest.mark.parametrize(
    ("context_length", "flash_attention", "sessions"),
    [(256, True, SESSIONS), (257, True, 1), (257, False, SESSIONS)],
)
def test_sessions_that_cant_go_back_share_steps_only_if_their_start_tells_of_all(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    context_length: int,
    flash_attention: bool,
    sessions: int,
) -> None:
    monkeypatch.setattr(exactness._Probe, "goes_back", lambda _probe: False)
    found = measured(request_for(model, context_length, flash_attention=flash_attention))
    assert found == Exactness(sessions, 1, None, rollback=False)
