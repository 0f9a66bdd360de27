import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshnet.domain.errors import (
    LayerRangeError,
    ModelFileError,
    ModelUnsupportedError,
    ResourceExhaustedError,
)
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.digest import model_digest
from meshnet.model.gguf import read_index
from tests.support.tiny_gguf import TinyModel, build

MIDDLE = LayerRange(1, 3)
Usage = namedtuple("Usage", "total used free")

ENSURE = """
import sys
from pathlib import Path
from meshnet.domain.layers import LayerRange
from meshnet.model import slice_file
from meshnet.model.cache import SliceCache

slice_file.CHECKPOINT = 4096

def progress(label, done, total):
    if label.startswith("slice") and done > total // 2 and sys.argv[3] == "halt":
        print("halfway", flush=True)
        sys.stdin.read()

print("ready", flush=True)
if sys.argv[3] == "race":
    sys.stdin.readline()
cache = SliceCache(Path(sys.argv[1]))
print(cache.ensure(Path(sys.argv[2]), LayerRange(1, 3), progress).path, flush=True)
if sys.argv[3] == "hold":
    sys.stdin.read()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build(tmp_path / "model.gguf")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def other_process(root: Path, model: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ENSURE, str(root), str(model), mode]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert said(process) == "ready"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def unfinished(root: Path) -> list[Path]:
    return [*root.rglob("*.unfinished"), *root.rglob("*.partial"), *root.rglob("*.journal")]


def require_intact(made: SliceFile) -> None:
    content = made.path.read_bytes()
    assert made.size == len(content)
    assert made.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert made.path.name == made.digest.replace(":", "-") + ".gguf"


def test_a_slice_is_written_once_and_found_again(root: Path, model: Path) -> None:
    made = SliceCache(root).ensure(model, MIDDLE)
    require_intact(made)
    assert not made.reused
    assert (made.layers, made.total_layers, made.architecture) == (MIDDLE, 4, "llama")
    assert (made.tap, made.all_rows) == ("l_out-1", True)
    assert made.model_digest == model_digest(read_index(model))

    def nothing_to_do(label: str, done: int, total: int, /) -> None:
        pytest.fail(f"{label} was done again")

    again = SliceCache(root).ensure(model, MIDDLE, nothing_to_do)
    assert again.reused
    assert (again.path, again.digest, again.size) == (made.path, made.digest, made.size)


def test_ranges_have_files_of_their_own(root: Path, model: Path) -> None:
    cache = SliceCache(root)
    made = [cache.ensure(model, LayerRange(*ends)) for ends in ((0, 2), (1, 3), (2, 4))]
    assert len({one.path for one in made}) == 3


def test_all_layers_are_served_by_the_model_itself(root: Path, model: Path) -> None:
    made = SliceCache(root).ensure(model, LayerRange(0, 4))
    assert made.path == model
    assert made.digest == made.model_digest
    assert made.tap is None
    assert not (root / "blobs").exists()


def test_a_model_in_parts_is_served_whole_by_its_first_part(root: Path, tmp_path: Path) -> None:
    first = build(tmp_path / "split.gguf", parts=2)
    made = SliceCache(root).ensure(tmp_path / "split-00002-of-00002.gguf", LayerRange(0, 4))
    assert made.path == first
    assert made.size == sum(path.stat().st_size for path in tmp_path.glob("split-*"))


def test_the_same_model_elsewhere_or_in_parts_gives_the_same_file(
    root: Path, model: Path, tmp_path: Path
) -> None:
    split = build(tmp_path / "split.gguf", parts=2)
    cache = SliceCache(root)
    assert cache.ensure(model, MIDDLE).path == cache.ensure(split, MIDDLE).path
    assert len(list((root / "blobs").iterdir())) == 1


def test_a_changed_model_gets_a_new_slice(root: Path, model: Path) -> None:
    before = SliceCache(root).ensure(model, MIDDLE)
    build(model, TinyModel(seed=1))
    after = SliceCache(root).ensure(model, MIDDLE)
    assert not after.reused
    assert after.digest != before.digest
    assert after.model_digest != before.model_digest


@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_a_damaged_file_is_written_again(root: Path, model: Path, damage: str) -> None:
    made = SliceCache(root).ensure(model, MIDDLE)
    if damage == "truncated":
        os.truncate(made.path, made.size - 1)
    else:
        made.path.unlink()
    again = SliceCache(root).ensure(model, MIDDLE)
    assert not again.reused
    require_intact(again)


@pytest.mark.parametrize(
    "entry", [b"", b"{}", b"[1]", b"\xff", json.dumps({"digest": "../x", "size": 1}).encode()]
)
def test_an_entry_that_is_none_is_made_anew(root: Path, model: Path, entry: bytes) -> None:
    SliceCache(root).ensure(model, MIDDLE)
    (path,) = (root / "slices").iterdir()
    path.write_bytes(entry)
    again = SliceCache(root).ensure(model, MIDDLE)
    assert not again.reused
    require_intact(again)
    assert SliceCache(root).ensure(model, MIDDLE).reused


def test_processes_that_want_the_same_slice_at_once_all_get_a_good_one(
    root: Path, model: Path
) -> None:
    with (
        other_process(root, model, "race") as first,
        other_process(root, model, "race") as second,
    ):
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        mine = SliceCache(root).ensure(model, MIDDLE)
        theirs = {said(first), said(second)}
    require_intact(mine)
    assert theirs == {str(mine.path)}
    assert unfinished(root) == []


def test_what_a_killed_writer_left_is_gone_on_with(root: Path, model: Path) -> None:
    with other_process(root, model, "halt") as writer:
        assert said(writer) == "halfway"
        writer.kill()
        writer.wait(timeout=10)
    assert {path.suffix for path in unfinished(root)} == {".partial", ".journal"}
    seen: list[tuple[int, int]] = []

    def progress(label: str, done: int, total: int, /) -> None:
        seen.append((done, total))

    require_intact(SliceCache(root).ensure(model, MIDDLE, progress))
    done, total = seen[0]
    assert total // 3 < done < total
    assert unfinished(root) == []


def test_a_living_writer_is_waited_for(root: Path, model: Path) -> None:
    with other_process(root, model, "halt") as writer:
        assert said(writer) == "halfway"
        with ThreadPoolExecutor(1) as pool:
            mine = pool.submit(SliceCache(root).ensure, model, MIDDLE)
            with pytest.raises(TimeoutError):
                mine.result(0.5)
            assert writer.stdin is not None
            writer.stdin.close()
            made = mine.result(10)
        path = said(writer)
        while path == "halfway":
            path = said(writer)
    assert path == str(made.path)
    assert made.reused
    require_intact(made)
    assert unfinished(root) == []


def disk_size(made: SliceFile) -> int:
    return made.path.stat().st_blocks * 512


def cut_one_after_the_other(root: Path, model: Path) -> list[SliceFile]:
    """Slices of one layer each, the first asked for again at the end; nobody uses them."""
    made = []
    for start in (0, 1, 2, 0):
        for entry in root.glob("slices/*"):
            used = entry.stat().st_mtime - 60
            os.utime(entry, (used, used))
        cache = SliceCache(root)
        made.append(cache.ensure(model, LayerRange(start, start + 1)))
        cache.close()
    return made[:3]


def test_the_slice_that_was_asked_for_the_longest_ago_goes_first(root: Path, model: Path) -> None:
    made = cut_one_after_the_other(root, model)
    coming = SliceCache(root.with_name("elsewhere")).ensure(model, LayerRange(3, 4))
    room = sum(map(disk_size, (made[0], made[2], coming)))
    SliceCache(root, room).ensure(model, LayerRange(3, 4))
    assert [each.path.exists() for each in made] == [True, False, True]
    assert SliceCache(root).ensure(model, LayerRange(0, 1)).reused
    assert not SliceCache(root).ensure(model, LayerRange(1, 2)).reused


def test_a_slice_that_another_process_uses_stays(root: Path, model: Path) -> None:
    with other_process(root, model, "hold") as user:
        path = Path(said(user))
        held = SliceCache(root).ensure(model, LayerRange(0, 1))
        limit = path.stat().st_blocks * 512 + disk_size(held)
        with pytest.raises(ResourceExhaustedError, match="cache-size") as caught:
            SliceCache(root, limit).ensure(model, LayerRange(0, 2))
        assert path.exists()
        user.kill()
        user.wait(timeout=10)
    assert str(limit) in caught.value.message
    assert not held.path.exists()
    SliceCache(root, limit).ensure(model, LayerRange(0, 2))
    assert not path.exists()


def test_a_slice_that_is_released_may_go(root: Path, model: Path) -> None:
    cache = SliceCache(root, 1 << 20)
    made = cache.ensure(model, MIDDLE)
    small = SliceCache(root, disk_size(made))
    with pytest.raises(ResourceExhaustedError):
        small.ensure(model, LayerRange(0, 1))
    cache.release(made.path)
    small.ensure(model, LayerRange(0, 1))
    assert not made.path.exists()


def test_a_limit_below_a_single_slice_is_told_with_what_is_needed(root: Path, model: Path) -> None:
    with pytest.raises(ResourceExhaustedError, match=r"\d+ bytes are needed .* may hold 1000,"):
        SliceCache(root, 1000).ensure(model, MIDDLE)


def test_a_disk_that_is_full_is_told_with_what_is_needed(
    root: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SliceCache(root).manifest(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 1))
    with pytest.raises(ResourceExhaustedError, match=r"1 bytes left, but \d+ are needed"):
        SliceCache(root).ensure(model, MIDDLE)


def test_a_model_is_checked_before_it_is_cut(root: Path, tmp_path: Path) -> None:
    bad = build(tmp_path / "bad.gguf", TinyModel(keys={"attention.head_count_kv": 3}))
    with pytest.raises(ModelFileError, match="head_count_kv"):
        SliceCache(root).ensure(bad, MIDDLE)
    assert not root.exists()


def test_ranges_and_models_that_must_not_be_cut_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(LayerRangeError):
        SliceCache(root).ensure(build(tmp_path / "m.gguf"), LayerRange(3, 5))
    seeing = build(
        tmp_path / "s.gguf", TinyModel("granite", keys={"deepstack_mapping": [0, 1, 2, 3]})
    )
    with pytest.raises(ModelUnsupportedError):
        SliceCache(root).ensure(seeing, MIDDLE)
    assert SliceCache(root).ensure(seeing, MIDDLE, allow_unverified=True).size > 0


def test_a_models_digest_is_computed_once(root: Path, model: Path) -> None:
    calls: list[str] = []
    cache = SliceCache(root)
    first = cache.digest(model, lambda label, *_: calls.append(label))
    assert calls
    calls.clear()
    assert cache.digest(model, lambda label, *_: calls.append(label)) == first
    assert calls == []
