"""What libllama is told about devices and memory, and what it makes of that on a processor."""

import ctypes
import itertools
import logging
import resource
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp import loading
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.library import function
from meshnet.engine.llamacpp.loading import ModelParams, load_mode, load_model, require_lockable
from meshnet.engine.llamacpp.machine import Device, processor
from meshnet.engine.llamacpp.placement import Placement, place_layers
from meshnet.model.cache import SliceCache
from tests.support.tiny_gguf import TINY, KeyValue, TinyModel, build

LAYERS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model") / "tiny.gguf", TinyModel(layers=LAYERS))


@pytest.fixture
def with_zeros_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose layers mean what their index modulo 4 says."""
    monkeypatch.setitem(TINY, "smollm3", TINY["llama"])
    return build(tmp_path / "smollm3.gguf", TinyModel("smollm3", LAYERS))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor stands in for a GPU."""
    monkeypatch.setattr(loading, "gpu_devices", lambda: (processor(),))


def request(model: Path, start: int, end: int, limits: EngineLimits) -> LoadRequest:
    cut = SliceCache(model.parent).ensure(model, LayerRange(start, end))
    recipe = Recipe(cut.model_digest, "libllama", "test")
    return LoadRequest(cut.path, start, end, LAYERS, recipe, limits)


def test_a_head_lists_the_processor_last_and_overrides_its_stub() -> None:
    devices = [processor()]
    placement = place_layers(2, 3, 1, tail=False, free_bytes=[100])
    params = ModelParams(EngineLimits(gpu_layers=2))
    params.place(placement, devices, range(3, 4))
    values = params.values
    handles = ctypes.cast(values.devices, ctypes.POINTER(ctypes.c_void_p))
    assert [handles[0], handles[1], handles[2]] == [devices[0].handle, processor().handle, None]
    assert (values.n_gpu_layers, list(values.tensor_split[:3])) == (4, [1.5, 2.5, 0.0])
    entries = ctypes.cast(values.tensor_buft_overrides, ctypes.POINTER(ctypes.c_void_p))
    assert ctypes.string_at(entries[0] or 0) == rb"^blk\.3\."
    assert entries[1] == function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    assert (entries[2], entries[3]) == (None, None)


def test_without_layers_on_a_gpu_no_device_is_left_to_libllama() -> None:
    params = ModelParams(EngineLimits())
    params.place(place_layers(0, 3, 1, tail=False, free_bytes=[100]), [processor()], range(3, 4))
    handles = ctypes.cast(params.values.devices, ctypes.POINTER(ctypes.c_void_p))
    assert (handles[0], params.values.n_gpu_layers) == (None, 0)
    assert not params.values.tensor_buft_overrides


def test_libllama_takes_the_override_of_the_stub_alone(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "meshnet.libllama")
    head = request(model, 0, 3, EngineLimits(gpu_layers=2))
    loaded, kept = load_model(head, [processor()])
    assert kept is not None
    llama_cpp.llama_model_free(loaded)
    said = [record.getMessage() for record in caplog.records]
    overridden = {text.split()[1] for text in said if "overridden to CPU" in text}
    assert overridden
    assert all(name.startswith("blk.3.") for name in overridden)
    assert sum("using device CPU" in text for text in said) == 2


def test_layers_of_zeros_in_front_stay_on_the_processor_and_all_own_ones_are_moved(
    with_zeros_in_front: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "meshnet.libllama")
    told: list[tuple[Placement, list[int]]] = []
    place = ModelParams.place

    def noting(
        self: ModelParams, made: Placement, devices: Sequence[Device], stubs: Sequence[int]
    ) -> None:
        told.append((made, list(stubs)))
        place(self, made, devices, stubs)

    monkeypatch.setattr(ModelParams, "place", noting)
    middle = request(with_zeros_in_front, 1, 3, EngineLimits(gpu_layers=99))
    loaded, kept = load_model(middle, [processor()])
    assert kept is not None
    assert loading.metadata_text(loaded, "meshnet.slice.nulls_before") == "1"
    llama_cpp.llama_model_free(loaded)
    # Of three blocks and the output, libllama is to move the last three: own layers and output.
    assert told == [(Placement(3, (1.5, 1.5), processor_last=True, offload="all"), [])]
    assert "overridden to CPU" not in caplog.text


def logits(model: Path, edges: tuple[int, ...], limits: EngineLimits) -> bytes:
    """Those of seven tokens through a chain cut at ``edges``."""
    rows: np.ndarray | None = None
    for start, end in itertools.pairwise(edges):
        context = LlamaContext(request(model, start, end, limits), max_outputs=8)
        try:
            outputs = 7 if end == LAYERS else 0
            tokens = tuple(range(7)) if rows is None else ()
            rows = context.decode([Rows(0, 0, tokens, rows, outputs)]).copy()
        finally:
            context.close()
    assert rows is not None
    return rows.tobytes()


@pytest.mark.parametrize("wanted", [1, 2, 99])
@pytest.mark.parametrize("name", ["model", "with_zeros_in_front"])
@pytest.mark.usefixtures("pretended")
def test_layers_given_to_a_device_compute_the_same(
    wanted: int, name: str, request: pytest.FixtureRequest
) -> None:
    model: Path = request.getfixturevalue(name)
    given = logits(model, (0, 2, 3, LAYERS), EngineLimits(gpu_layers=wanted))
    assert given == logits(model, (0, LAYERS), EngineLimits())


MEMORY_MODES = [
    EngineLimits(mmap=mmap, mlock=mlock)
    for mmap, mlock in itertools.product((True, False), repeat=2)
]


@pytest.mark.parametrize("limits", MEMORY_MODES, ids=lambda it: f"{it.mmap}-{it.mlock}")
def test_how_weights_are_held_changes_no_bit(limits: EngineLimits, model: Path) -> None:
    assert logits(model, (0, 2, LAYERS), limits) == logits(model, (0, LAYERS), EngineLimits())


def test_each_way_to_hold_weights_has_a_mode_of_its_own() -> None:
    modes = [load_mode(mmap=each.mmap, mlock=each.mlock) for each in MEMORY_MODES]
    assert modes == [
        llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
        llama_cpp.LLAMA_LOAD_MODE_AUTO,
        llama_cpp.LLAMA_LOAD_MODE_MLOCK,
        llama_cpp.LLAMA_LOAD_MODE_NONE,
    ]


def test_locking_more_than_the_system_allows_is_refused_before_loading() -> None:
    require_lockable(10, 10)
    require_lockable(2**60, resource.RLIM_INFINITY)
    with pytest.raises(InvalidArgumentError, match=r"mlock: .* \(ulimit -l\)"):
        require_lockable(11, 10)


def test_a_cache_type_whose_blocks_dont_fit_the_heads_is_refused(tmp_path: Path) -> None:
    narrow = build(tmp_path / "narrow.gguf", TinyModel(layers=LAYERS, embedding=64, heads=4))
    digest = SliceCache(tmp_path).digest(narrow)
    recipe = Recipe(digest, "libllama", "test", kv_type_k="q8_0")
    with pytest.raises(InvalidArgumentError, match="cache_type_k: q8_0 has blocks of 32"):
        LlamaContext(LoadRequest(narrow, 0, LAYERS, LAYERS, recipe), max_outputs=1)


def test_a_slice_that_miscounts_its_layers_of_zeros_is_refused_by_the_key(tmp_path: Path) -> None:
    described: dict[str, KeyValue] = {"meshnet.slice.nulls_before": "two"}
    path = build(tmp_path / "odd.gguf", TinyModel(layers=LAYERS), described=described)
    recipe = Recipe(SliceCache(tmp_path).digest(path), "libllama", "test")
    limits = EngineLimits(gpu_layers=1)
    with pytest.raises(EngineError, match=r"nulls_before is 'two'"):
        load_model(LoadRequest(path, 0, LAYERS, LAYERS, recipe, limits), [processor()])
