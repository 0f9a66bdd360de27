"""What the commands do with a model's file: where they cut it, and when libllama sees it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshnet.cli import local
from meshnet.cli.local import LocalModel, served_model, split
from meshnet.cli.main import app
from meshnet.cli.options import NodeOptions, Optimise
from meshnet.domain.errors import FingerprintMismatchError, ModelFileError
from meshnet.domain.ids import Address, Digest
from meshnet.domain.layers import LayerRange
from tests.support.gguf_values import vocabulary_keys
from tests.support.mesh import Setup, mesh
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
