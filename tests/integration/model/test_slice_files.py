import hashlib
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFReader

from meshnet.domain.errors import (
    InvalidArgumentError,
    ModelFileError,
    ModelUnsupportedError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.check import check_loadable
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.model.slice_file import write_slice
from meshnet.model.slice_plan import SlicePlan, plan_slice
from tests.support.tiny_gguf import TinyModel, build
from tests.support.tiny_tensors import TINY

DIGEST = Digest("sha256:" + "0" * 64)
Usage = namedtuple("Usage", "total used free")


def plan(path: Path, start: int, end: int) -> SlicePlan:
    return plan_slice(read_index(path), LayerRange(start, end), DIGEST)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("ends", [(0, 2), (1, 2), (2, 3)])
def test_a_slice_holds_the_models_bytes_as_the_reference_reader_sees_them(
    name: str, ends: tuple[int, int], tmp_path: Path
) -> None:
    model = build(tmp_path / "m.gguf", TinyModel(name, 3, quantization=GGMLQuantizationType.Q8_0))
    made = plan(model, *ends)
    written = write_slice(made, tmp_path / "slice.gguf")
    originals = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    tensors = GGUFReader(written.path).tensors
    assert [tensor.name for tensor in tensors] == [tensor.name for tensor in made.tensors]
    for planned, tensor in zip(made.tensors, tensors, strict=True):
        assert tensor.tensor_type == planned.type
        if planned.source is None:
            assert not tensor.data.any()
        else:
            assert tensor.data.tobytes() == originals[planned.source.name].data.tobytes()
    check_loadable(written.path)


def test_metadata_is_written_as_planned(tmp_path: Path) -> None:
    made = plan(build(tmp_path / "m.gguf"), 1, 3)
    written = write_slice(made, tmp_path / "slice.gguf")
    assert tuple(read_index(written.path).metadata.items()) == made.metadata


def test_digest_and_size_are_those_of_the_file(tmp_path: Path) -> None:
    written = write_slice(plan(build(tmp_path / "m.gguf"), 0, 2), tmp_path / "slice.gguf")
    content = written.path.read_bytes()
    assert written.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert written.size == len(content)


@pytest.mark.parametrize("ends", [(0, 2), (1, 3), (2, 4)])
def test_a_model_in_parts_gives_the_same_slices(ends: tuple[int, int], tmp_path: Path) -> None:
    whole = build(tmp_path / "whole.gguf")
    split = build(tmp_path / "split.gguf", parts=3)
    digests = {
        write_slice(plan(path, *ends), tmp_path / "slice.gguf").digest for path in (whole, split)
    }
    assert len(digests) == 1


def test_a_larger_alignment_is_kept(tmp_path: Path) -> None:
    model = build(tmp_path / "m.gguf", TinyModel(layers=3), alignment=256)
    written = write_slice(plan(model, 1, 2), tmp_path / "slice.gguf")
    index = read_index(written.path)
    assert index.alignment == 256
    assert all(tensor.offset % 256 == 0 for tensor in index.tensors.values())


def test_zeros_take_no_space_on_disk(tmp_path: Path) -> None:
    model = build(tmp_path / "m.gguf", TinyModel(embedding=256))
    written = write_slice(plan(model, 0, 1), tmp_path / "slice.gguf")
    status = written.path.stat()
    stub = sum(t.size for t in plan(model, 0, 1).tensors if t.source is None)
    assert stub > 500_000
    assert status.st_size - status.st_blocks * 512 > stub // 2


def test_progress_grows_to_the_size_of_the_file(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    written = write_slice(
        plan(build(tmp_path / "m.gguf"), 0, 2),
        tmp_path / "slice.gguf",
        lambda label, done, total: seen.append((label, done, total)),
    )
    dones = [done for _, done, _ in seen]
    assert dones == sorted(dones)
    assert seen[-1] == ("slice [0, 2)", written.size, written.size)


def test_a_failure_in_the_middle_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "slice.gguf").write_bytes(b"old")

    def fail(label: str, done: int, total: int, /) -> None:
        if done > total // 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_slice(plan(build(tmp_path / "m.gguf"), 0, 2), folder / "slice.gguf", fail)
    assert [path.name for path in folder.iterdir()] == ["slice.gguf"]
    assert (folder / "slice.gguf").read_bytes() == b"old"


def test_the_destination_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "slice.gguf"
    seen: list[bool] = []
    write_slice(
        plan(build(tmp_path / "m.gguf"), 0, 2), target, lambda *_: seen.append(target.exists())
    )
    assert seen
    assert not any(seen)
    assert target.exists()


def test_a_model_that_changes_after_it_was_indexed_is_refused(tmp_path: Path) -> None:
    model = build(tmp_path / "m.gguf")
    made = plan(model, 0, 2)
    os.utime(model, ns=(0, 0))
    with pytest.raises(ModelFileError, match="changed while it was read"):
        write_slice(made, tmp_path / "out" / "slice.gguf")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_that_becomes_shorter_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    model = build(tmp_path / "m.gguf")
    made = plan(model, 3, 4)
    os.truncate(model, model.stat().st_size // 2)
    with pytest.raises(ModelFileError, match="became shorter") as caught:
        write_slice(made, tmp_path / "slice.gguf")
    assert caught.value.details["field"] == "blk.3.attn_norm.weight"


def test_a_model_that_is_gone_is_refused(tmp_path: Path) -> None:
    model = build(tmp_path / "m.gguf")
    made = plan(model, 0, 2)
    model.unlink()
    with pytest.raises(ModelFileError, match="No such file"):
        write_slice(made, tmp_path / "slice.gguf")


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(build(tmp_path / "m.gguf"), 0, 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 1))
    with pytest.raises(ResourceExhaustedError, match="1 bytes left"):
        write_slice(made, tmp_path / "slice.gguf")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_gets_full_is_a_resource_used_up(tmp_path: Path) -> None:
    def full(label: str, done: int, total: int, /) -> None:
        Path("/dev/full").write_bytes(b"x")

    with pytest.raises(ResourceExhaustedError, match="no space left"):
        write_slice(plan(build(tmp_path / "m.gguf"), 0, 2), tmp_path / "slice.gguf", full)


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="can't be written") as caught:
        write_slice(plan(build(tmp_path / "m.gguf"), 0, 2), tmp_path / "file" / "slice.gguf")
    assert caught.value.details["field"] == "output"


def test_a_slice_cannot_be_cut_again(tmp_path: Path) -> None:
    written = write_slice(plan(build(tmp_path / "m.gguf"), 0, 3), tmp_path / "slice.gguf")
    with pytest.raises(ModelUnsupportedError, match="itself a slice"):
        describe(read_index(written.path))


def test_a_slice_never_replaces_its_own_model(tmp_path: Path) -> None:
    model = build(tmp_path / "model.gguf")
    before = model.read_bytes()
    plan = plan_slice(read_index(model), LayerRange(0, 2), Digest("sha256:" + "0" * 64))
    with pytest.raises(InvalidArgumentError, match="output"):
        write_slice(plan, model)
    assert model.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("ends", [(0, 2), (5, 6)])
def test_a_layer_that_must_add_nothing_is_refused_if_it_adds_something(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    model = build(tmp_path / "m.gguf", TinyModel("gemma3", 6))
    written = write_slice(plan(model, *ends), tmp_path / "slice.gguf")
    check_loadable(written.path)
    stub = read_index(written.path).tensors[f"blk.{ends[1] - ends[0]}.ffn_up.weight"]
    with written.path.open("r+b") as file:
        file.seek(stub.offset)
        file.write(b"\1")
    with pytest.raises(ModelFileError, match="must be zeros") as caught:
        check_loadable(written.path)
    assert caught.value.details["field"] == stub.name
