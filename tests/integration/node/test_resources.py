"""What is free, read from files as the kernel writes them."""

from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.node.resources import available_memory, group_room, resources

MIB = 1 << 20


def group(
    root: Path, name: str, limit: str, used: int = 0, cached: int = 0, shared: int = 0
) -> None:
    folder = root / "sys/fs/cgroup" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\nfile {cached}\nkernel 2\nshmem {shared}\n")


def machine(root: Path) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\n")
    (root / "proc/self/cgroup").write_text("0::/pod/box\n")
    return root


def test_free_memory_is_what_is_available_and_not_what_is_unused(tmp_path):
    assert resources(tmp_path, root=machine(tmp_path)).memory_bytes == 4 * MIB


def test_a_system_that_does_not_tell_is_asked_of_its_owner(tmp_path):
    assert available_memory(tmp_path) is None
    with pytest.raises(InvalidArgumentError, match="--memory"):
        resources(tmp_path, root=tmp_path)


def test_the_tightest_group_counts_and_its_page_cache_does_not(tmp_path):
    root = machine(tmp_path)
    group(root, "pod", str(3 * MIB), used=2 * MIB, cached=MIB)
    group(root, "pod/box", "max")
    assert group_room(root) == 2 * MIB
    group(root, "pod/box", str(MIB), used=MIB // 2)
    assert resources(tmp_path, root=root).memory_bytes == MIB // 2
    group(root, "pod/box", str(MIB), used=5 * MIB)
    assert group_room(root) == 0


def test_shared_memory_cant_be_given_up_though_it_is_counted_as_files(tmp_path):
    root = machine(tmp_path)
    group(root, "pod/box", str(4 * MIB), used=3 * MIB, cached=2 * MIB, shared=MIB)
    assert group_room(root) == 2 * MIB


def test_without_limits_groups_do_not_matter(tmp_path):
    root = machine(tmp_path)
    assert group_room(root) is None
    group(root, "pod", "max")
    assert group_room(root) is None


def test_what_an_own_worker_holds_counts_as_free(tmp_path):
    root = machine(tmp_path)
    (root / "proc/77").mkdir()
    (root / "proc/77/status").write_text("Name: x\nVmRSS: 9999 kB\nRssAnon: 1024 kB\n")
    assert resources(tmp_path, (77, 78), root).memory_bytes == 5 * MIB
    (root / "proc/77/status").write_text("RssAnon: 1024 kB\nRssFile: 2048 kB\nVmLck: 9999 kB\n")
    assert resources(tmp_path, (77,), root).memory_bytes == 7 * MIB


def test_free_disk_is_that_of_the_folder_to_be(tmp_path):
    found = resources(tmp_path / "a" / "b", root=machine(tmp_path))
    assert found.disk_bytes > 0
    assert found.cores >= 1
