from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.engine.base import EngineCapabilities, EngineLimits, LoadRequest
from meshnet.engine.llamacpp import exactness, findings
from meshnet.engine.llamacpp.context import LlamaContext
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.model.cache import SliceCache
from tests.support.llama_bench import load_request
from tests.support.tiny_gguf import TinyModel, build

LIMITS = EngineLimits(context_length=64, max_sessions=2)


@pytest.fixture
def request_of_tail(tmp_path):
    path = build(tmp_path / "tiny.gguf", TinyModel("llama", layers=3))
    return load_request(SliceCache(tmp_path).ensure(path, LayerRange(1, 3)), LIMITS)


@pytest.fixture
def measured(monkeypatch):
    """How often something was measured."""
    runs: list[LoadRequest] = []
    real = exactness.measure_exactness

    def counted(context: LlamaContext, request: LoadRequest) -> exactness.Exactness:
        runs.append(request)
        return real(context, request)

    monkeypatch.setattr(findings, "measure_exactness", counted)
    return runs


def capabilities(request: LoadRequest, notes: Path | None) -> EngineCapabilities:
    engine = LlamaShardEngine(notes)
    try:
        return engine.load(request).capabilities
    finally:
        engine.close()


def test_what_is_exact_is_measured_once_a_file_recipe_and_limit(
    request_of_tail, measured, tmp_path
):
    notes = tmp_path / "notes"
    first = capabilities(request_of_tail, notes)
    assert capabilities(request_of_tail, notes) == first
    assert len(measured) == 1
    capabilities(replace(request_of_tail, limits=replace(LIMITS, max_sessions=1)), notes)
    other = replace(request_of_tail.recipe, chunk_tokens=8)
    capabilities(replace(request_of_tail, recipe=other), notes)
    assert len(measured) == 3


def test_a_note_that_is_damaged_is_measured_and_written_anew(request_of_tail, measured, tmp_path):
    notes = tmp_path / "notes"
    first = capabilities(request_of_tail, notes)
    (note,) = notes.iterdir()
    note.write_text("{}")
    assert capabilities(request_of_tail, notes) == first
    assert capabilities(request_of_tail, notes) == first
    assert len(measured) == 2


def test_without_a_folder_every_load_measures(request_of_tail, measured):
    capabilities(request_of_tail, None)
    capabilities(request_of_tail, None)
    assert len(measured) == 2


def test_what_there_was_no_time_for_is_not_relied_upon_nor_remembered(
    request_of_tail, monkeypatch, tmp_path
):
    real = exactness.measure_exactness
    monkeypatch.setattr(
        findings, "measure_exactness", lambda context, request: real(context, request, seconds=0.0)
    )
    held = capabilities(request_of_tail, tmp_path / "notes")
    assert (held.exact_sessions, held.exact_step_tokens, held.exact_pieces) == (1, 1, None)
    assert not held.supports_rollback
    assert not (tmp_path / "notes").exists()


def test_more_sessions_than_libllama_keeps_are_refused_before_anything_is_loaded(request_of_tail):
    many = replace(request_of_tail, limits=replace(LIMITS, max_sessions=257))
    with pytest.raises(InvalidArgumentError, match="max_sessions: 257 are more than the 256"):
        capabilities(replace(many, model_path=None), None)
