import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import MeshnetError, ModelFileError, ModelNotFoundError
from meshnet.model.check import check_index
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.model.metadata import encode_string
from tests.support.tiny_gguf import TinyModel, build
from tests.support.tiny_tensors import TINY

Q8_0, F32 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32


def key(name: str, kind: GGUFValueType, payload: bytes) -> bytes:
    return encode_string(name) + struct.pack("<I", kind) + payload


def tensor(
    name: str = "t", shape: tuple[int, ...] = (32,), kind: int = F32, offset: int = 0
) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return encode_string(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: int = 1024,
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = magic + version + struct.pack("<QQ", tensor_count, key_count)
    head += b"".join(keys) + b"".join(tensors)
    return head.ljust((len(head) + 31) & -32, b"\0") + bytes(data)


UINT32, STRING, ARRAY = GGUFValueType.UINT32, GGUFValueType.STRING, GGUFValueType.ARRAY
HUGE = 2**63 + 5
LIES = {
    "empty": (b"", "magic"),
    "other magic": (gguf(magic=b"GGML"), "magic"),
    "big-endian": (gguf(version=struct.pack(">I", 3)), "version"),
    "version 1": (gguf(version=struct.pack("<I", 1)), "version"),
    "version 4": (gguf(version=struct.pack("<I", 4)), "version"),
    "more tensors than fit": (gguf(counts=(60000, 0)), "tensor count"),
    "more keys than fit": (gguf(counts=(0, 60000)), "metadata count"),
    "counts beyond all bounds": (gguf(counts=(2**64 - 1, 2**64 - 1)), "tensor count"),
    "a key longer than the file": (
        gguf([struct.pack("<Q", 60000) + b"k"]),
        "key 0",
    ),
    "an empty key": (gguf([key("", UINT32, bytes(4))]), "key 0"),
    "a key that is no text": (gguf([struct.pack("<Q", 1) + b"\xff" + bytes(8)]), "key 0"),
    "a key twice": (gguf([key("k", UINT32, bytes(4))] * 2), "k"),
    "an unknown type of value": (gguf([encode_string("k") + struct.pack("<I", 13)]), "k"),
    "a string longer than the file": (gguf([key("k", STRING, struct.pack("<Q", HUGE))]), "k"),
    "an array longer than the file": (
        gguf([key("k", ARRAY, struct.pack("<IQ", UINT32, HUGE))]),
        "k",
    ),
    "strings longer than the file": (
        gguf([key("k", ARRAY, struct.pack("<IQQQ", STRING, 2, HUGE, 1))]),
        "k",
    ),
    "an array of arrays": (gguf([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "k"),
    "an alignment of 0": (
        gguf([key("general.alignment", UINT32, struct.pack("<I", 0))]),
        "general.alignment",
    ),
    "an alignment of 48": (
        gguf([key("general.alignment", UINT32, struct.pack("<I", 48))]),
        "general.alignment",
    ),
    "a tensor twice": (gguf(None, [tensor("t"), tensor("t", offset=128)]), "t"),
    "a name of 64 bytes": (gguf(None, [tensor("t" * 64)]), "name of tensor 0"),
    "a name with a zero byte": (gguf(None, [tensor("a\0b")]), "name of tensor 0"),
    "no dimension": (gguf(None, [tensor(shape=())]), "t"),
    "five dimensions": (gguf(None, [tensor(shape=(1,) * 5)]), "t"),
    "an extent of 0": (gguf(None, [tensor(shape=(32, 0))]), "t"),
    "extents that overflow": (gguf(None, [tensor(shape=(2**32, 2**32))]), "t"),
    "an unknown type of tensor": (gguf(None, [tensor(kind=4)]), "t"),
    "rows that don't fill blocks": (gguf(None, [tensor(shape=(33,), kind=Q8_0)]), "t"),
    "an offset out of line": (gguf(None, [tensor(offset=16)]), "t"),
    "overlapping tensors": (gguf(None, [tensor("a"), tensor("t", offset=64)]), "t"),
    "a gap between tensors": (gguf(None, [tensor("a"), tensor("t", offset=256)]), "t"),
    "data that end early": (gguf(None, [tensor()], data=127), "t"),
    "a tensor larger than the file": (gguf(None, [tensor(shape=(2**40,))]), "t"),
}


@pytest.mark.parametrize(("content", "field"), LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused_by_file_and_field(
    content: bytes, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "liar.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read_index(path)
    assert caught.value.details == {"file": str(path), "field": field}
    assert str(path) in caught.value.message


def test_a_header_behind_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "endless.gguf"
    count = 300 << 20
    head = gguf([key("k", ARRAY, struct.pack("<IQ", GGUFValueType.UINT8, count))], data=0)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + count)
    started = time.perf_counter()
    with pytest.raises(ModelFileError, match="most allowed"):
        read_index(path)
    assert time.perf_counter() - started < 1


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sound")
    model = TinyModel("gemma3", layers=2, embedding=32, per_layer_arrays=True)
    return build(folder / "sound.gguf", model).read_bytes()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_is_changed_in_a_header_the_answer_is_an_error_of_ours_or_an_index(
    data: st.DataObject, sound_file: bytes, tmp_path: Path
) -> None:
    header = sound_file.index(b"blk.1.post_ffw_norm.weight") + 64
    changed = bytearray(sound_file)
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        start = data.draw(st.integers(0, header), label="start")
        what = data.draw(st.sampled_from(["set", "insert", "remove", "cut"]), label="what")
        if what == "set":
            piece = data.draw(st.binary(min_size=1, max_size=8))
            changed[start : start + len(piece)] = piece
        elif what == "insert":
            changed[start:start] = data.draw(st.binary(min_size=1, max_size=64))
        elif what == "remove":
            del changed[start : start + data.draw(st.integers(1, 64))]
        else:
            del changed[start:]
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed)
    try:
        index = read_index(path)
    except ModelFileError:
        return
    for check in (describe, check_index):
        try:
            check(index)
        except MeshnetError:
            continue


@pytest.mark.parametrize("name", TINY)
def test_an_index_agrees_with_the_reference_reader(name: str, tmp_path: Path) -> None:
    path = build(tmp_path / "m.gguf", TinyModel(name, layers=2, per_layer_arrays=True))
    index, reader = read_index(path), GGUFReader(path)
    fields = {key: f.contents() for key, f in reader.fields.items() if key[:5] != "GGUF."}
    ours = {
        key: value.scalar() if value.element is None else value.items()
        for key, value in index.metadata.items()
    }
    assert ours == fields
    assert [(t.name, t.type, list(t.shape), t.offset, t.size) for t in index.tensors.values()] == [
        (t.name, t.tensor_type, t.shape.tolist(), t.data_offset, t.n_bytes) for t in reader.tensors
    ]


def test_a_vocabulary_of_262144_tokens_is_indexed_at_once(tmp_path: Path) -> None:
    tokens = b"".join(encode_string(f"token {number}") for number in range(262144))
    head = struct.pack("<IQ", STRING, 262144)
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf([key("tokenizer.ggml.tokens", ARRAY, head + tokens)]))
    started = time.perf_counter()
    index = read_index(path)
    # A walk that decodes every token in Python takes tens of seconds.
    assert time.perf_counter() - started < 1
    assert index.metadata["tokenizer.ggml.tokens"].count == 262144


def test_every_part_leads_to_the_whole_model(tmp_path: Path) -> None:
    whole = read_index(build(tmp_path / "whole.gguf"))
    build(tmp_path / "split.gguf", parts=3)
    paths = sorted(tmp_path.glob("split-*.gguf"))
    assert len(paths) == 3
    for path in paths:
        index = read_index(path)
        assert [part.path for part in index.parts] == paths
        assert index.path == paths[0]
        assert index.architecture == "llama"
        shapes = {name: (t.type, t.shape, t.size) for name, t in index.tensors.items()}
        assert shapes == {name: (t.type, t.shape, t.size) for name, t in whole.tensors.items()}


def spoiled(change: Callable[[list[Path]], object], folder: Path) -> ModelFileError:
    build(folder / "m.gguf", parts=3)
    paths = sorted(folder.glob("m-*.gguf"))
    change(paths)
    with pytest.raises(ModelFileError) as caught:
        read_index(paths[0])
    return caught.value


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    error = spoiled(lambda paths: paths[1].unlink(), tmp_path)
    assert error.details["file"].endswith("m-00002-of-00003.gguf")
    assert "part 2 of 3 is missing" in error.message


def test_a_part_in_anothers_place_is_refused(tmp_path: Path) -> None:
    error = spoiled(lambda paths: shutil.copy(paths[2], paths[1]), tmp_path)
    assert error.details["field"] == "split.no"


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    build(other / "m.gguf", TinyModel(layers=5), parts=3)
    part = "m-00002-of-00003.gguf"
    error = spoiled(lambda paths: shutil.copy(other / part, paths[1]), tmp_path)
    assert error.details["field"].startswith(("blk.", "split.tensors.count"))


def test_a_renamed_part_says_how_it_should_be_called(tmp_path: Path) -> None:
    first = build(tmp_path / "m.gguf", parts=2)
    renamed = first.rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="-00001-of-00002"):
        read_index(renamed)


def test_an_absent_file_is_a_model_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_index(tmp_path / "none.gguf")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="can't be read"):
        read_index(tmp_path)


def test_weights_of_a_tiny_model_are_random_but_always_the_same(tmp_path: Path) -> None:
    first, again = (build(tmp_path / f"{n}.gguf").read_bytes() for n in ("a", "b"))
    other = build(tmp_path / "c.gguf", TinyModel(seed=1)).read_bytes()
    assert first == again
    assert first != other
    assert np.isfinite(GGUFReader(tmp_path / "a.gguf").tensors[0].data).all()
