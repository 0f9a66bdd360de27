"""What the commands do with a model's file: where they cut it, and when libllama sees it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshnet.cli import local
from meshnet.cli.local import (
    LocalModel,
    find_model,
    model_digest,
    served_model,
    split,
    whole_model,
)
from meshnet.cli.main import app
from meshnet.cli.options import NodeOptions, Optimise
from meshnet.cli.settings import Settings
from meshnet.domain.errors import (
    FingerprintMismatchError,
    InvalidArgumentError,
    ModelFileError,
)
from meshnet.domain.ids import Address, Digest
from meshnet.domain.layers import LayerRange
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from tests.support.gguf_values import vocabulary_keys
from tests.support.mesh import Setup, mesh
from tests.support.range_server import range_server
from tests.support.tiny_gguf import TinyModel, build

DIGEST = Digest("sha256:" + "1" * 64)
NOWHERE = Address("127.0.0.1:1")
OPTIONS = NodeOptions(2, 1, 64, 1)
LAST_COSTS = TinyModel("gemma3", layers=6, keys={"context_length": 1 << 20})
"""A cut before its last layer, and no other, makes the tail compute a layer of zeros."""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A model whose cuts aren't equally good."""
    return LocalModel(build(tmp_path_factory.mktemp("models") / "uneven.gguf", LAST_COSTS), "x")


async def test_a_file_that_libllama_would_end_the_process_over_never_reaches_it(tmp_path: Path):
    tokens = vocabulary_keys()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    twice = {"tokenizer.ggml.tokens": [*tokens[:-1], tokens[0]]}
    path = build(tmp_path / "twice.gguf", described=twice)
    with pytest.raises(ModelFileError, match="twice"):
        async with served_model(LocalModel(path, "twice"), [NOWHERE], DIGEST):
            pass


async def test_nodes_of_another_model_are_told_before_the_vocabulary_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Unloadable:
        @staticmethod
        def load(_path: Path) -> None:
            raise AssertionError("the file's vocabulary was loaded")

    monkeypatch.setattr(local, "Vocabulary", Unloadable)
    path = build(tmp_path / "other.gguf")
    async with mesh((), Setup(grpc=True)) as nodes:
        with pytest.raises(FingerprintMismatchError, match="another model"):
            async with served_model(LocalModel(path, "other"), [nodes.head.hop.address], DIGEST):
                pass


def test_a_model_is_cut_where_no_layers_of_zeros_are_computed(uneven: LocalModel):
    # By weight the tail, which has the output matrix too, would hold the last layer alone.
    ranges = split(uneven, replace(OPTIONS, nodes=5, optimise=Optimise.THROUGHPUT))
    assert ranges[-1] == LayerRange(4, 6)


def test_a_model_is_cut_anywhere_if_so_many_nodes_are_asked_for(uneven: LocalModel):
    every = tuple(LayerRange(layer, layer + 1) for layer in range(6))
    assert split(uneven, replace(OPTIONS, nodes=6)) == every


def test_many_readers_work_is_shared_by_numbers_and_a_lone_ones_by_bytes(
    tmp_path: Path, monkeypatch
):
    model = LocalModel(build(tmp_path / "m.gguf", TinyModel(layers=8)), "m")
    many, info = replace(OPTIONS, optimise=Optimise.THROUGHPUT), describe(read_index(model.path))
    by_numbers, by_bytes = split(model, many), split(model, OPTIONS)
    wide_output = replace(info, output_bytes=100 * info.output_bytes)
    wide_layer = replace(wide_output, layer_bytes=(10**9, *info.layer_bytes[1:]))
    monkeypatch.setattr(local, "describe", lambda _: wide_layer)
    assert split(model, many) == by_numbers
    assert split(model, OPTIONS) == (LayerRange(0, 1), LayerRange(1, 8)) != by_bytes


def test_a_plan_is_made_for_the_models_own_context_at_most(uneven: LocalModel):
    asked = ("plan", str(uneven.path), "-m", "a:900GiB:40GB/s", "--json")
    more = CliRunner().invoke(app, (*asked, "--ctx", str(1 << 22)))
    most = CliRunner().invoke(app, (*asked, "--ctx", str(1 << 20)))
    assert (more.exit_code, most.exit_code, most.stderr) == (0, 0, "")
    assert f"the model's context is {1 << 20} tokens; --ctx {1 << 22} is cut to it" in more.stderr
    assert json.loads(more.stdout) == json.loads(most.stdout)


def test_a_plan_cuts_anywhere_if_nothing_else_fits(uneven: LocalModel):
    # 8 GiB of cache a layer, headroom aside.
    size = ("--ctx", str(1 << 20), "--sessions", "32")
    asked = ("plan", str(uneven.path), "-m", "a:12GiB:40GB/s*6", *size, "--json")
    made = CliRunner().invoke(app, asked)
    assert made.exit_code == 0, made
    assert len(json.loads(made.stdout)["stages"]) == 6


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("parts", [1, 3])
def test_an_address_is_looked_at_and_planned_for_by_its_header_alone(
    parts: int, tmp_path: Path, cache: Path
):
    path = build(tmp_path / "wide.gguf", TinyModel(embedding=256), parts=parts)
    machines = ("-m", "a:900GiB:40GB/s*2", "--ctx", "64", "--json")
    with range_server(tmp_path) as server:
        url = server.url(path.name)
        looked = CliRunner().invoke(app, ("inspect", url, "--json", "--ctx", "64"))
        planned = CliRunner().invoke(app, ("plan", url, *machines))
    assert (looked.exit_code, planned.exit_code) == (0, 0), (looked, planned)
    here = CliRunner().invoke(app, ("inspect", str(path), "--json", "--ctx", "64"))
    drop = ("path", "memory")
    seen, same = (
        {key: value for key, value in json.loads(each.stdout).items() if key not in drop}
        for each in (looked, here)
    )
    assert seen == same
    assert json.loads(looked.stdout)["path"] == url
    assert planned.stdout == CliRunner().invoke(app, ("plan", str(path), *machines)).stdout
    assert server.sent <= parts * (64 << 10) + 1


def test_layers_of_an_address_are_written_as_those_of_the_file(tmp_path: Path, cache: Path):
    path = build(tmp_path / "wide.gguf", TinyModel(embedding=256))
    with range_server(tmp_path) as server:
        asked = ("slice", server.url(path.name), "1:3", "-o", str(tmp_path / "theirs.gguf"))
        written = CliRunner().invoke(app, asked)
    assert written.exit_code == 0, written
    CliRunner().invoke(app, ("slice", str(path), "1:3", "-o", str(tmp_path / "ours.gguf")))
    theirs, ours = (read_index(tmp_path / name) for name in ("theirs.gguf", "ours.gguf"))
    assert theirs.tensors == ours.tensors
    start = min(tensor.offset for tensor in ours.tensors.values())
    assert theirs.path.read_bytes()[start:] == ours.path.read_bytes()[start:]


def test_a_models_headers_are_never_taken_for_the_model(tmp_path: Path, cache: Path):
    path = build(tmp_path / "model.gguf")
    with range_server(tmp_path) as server:
        CliRunner().invoke(app, ("inspect", server.url(path.name)))
    (head,) = cache.rglob("model.gguf")
    with pytest.raises(InvalidArgumentError, match="has no weights"):
        SliceCache(cache).ensure(head, LayerRange(0, 2))


def test_the_whole_of_an_address_is_fetched_once(tmp_path: Path, cache: Path):
    path = build(tmp_path / "split.gguf", parts=2)
    settings = Settings.from_environment()
    with range_server(tmp_path) as server:
        found = find_model(server.url(path.name), settings)
        whole = whole_model(found, settings)
        sent = server.sent
        assert whole_model(found, settings) == whole
    assert server.sent == sent
    assert whole.remote is None
    assert model_digest(whole, settings) == SliceCache(cache).digest(path)


def test_the_caches_size_is_what_the_option_says_or_else_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("MESHNET_CACHE_SIZE", "2GiB")
    assert Settings.from_environment().cache_limit == 2 << 30
    assert Settings.from_environment("3GiB").cache_limit == 3 << 30
    with pytest.raises(InvalidArgumentError, match="cache-size"):
        Settings.from_environment("much")


@pytest.mark.parametrize("parts", [1, 3])
def test_an_address_gives_the_vocabulary_by_its_headers_alone(
    parts: int, tmp_path: Path, cache: Path
):
    path = build(tmp_path / "m.gguf", parts=parts)
    with range_server(tmp_path) as server:
        found = find_model(server.url(path.name), Settings.from_environment())
    with Vocabulary.load(found.path) as theirs, Vocabulary.load(path) as ours:
        asked = {"add_special": True, "parse_special": True}
        assert theirs.tokenize("hello there", **asked) == ours.tokenize("hello there", **asked)
