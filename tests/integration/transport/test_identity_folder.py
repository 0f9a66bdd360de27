"""What a node keeps about itself outlives it, and is for its owner alone."""

from __future__ import annotations

import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.transport import identity_folder
from meshnet.transport.certificates import Authority, Role, node_id_of
from meshnet.transport.identity_folder import IdentityFolder, load_or_make_authority
from tests.support.identities import AUTHORITY


def join(folder: IdentityFolder, authority: Authority = AUTHORITY) -> bytes:
    """What a tracker does for a machine that joins; gives the certificate."""
    public = folder.public_key()
    return authority.issue(public, node_id_of(public), role=Role.NODE)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_node_stays_who_it_is(tmp_path: Path) -> None:
    first = IdentityFolder(tmp_path / "a" / "b")
    assert first.identity() is None
    node_id = first.node_id()
    identity = first.keep(join(first), AUTHORITY.certificate_pem)
    again = IdentityFolder(tmp_path / "a" / "b")
    assert again.identity() == identity == again.files.load()
    assert again.node_id() == node_id == identity.node_id
    assert IdentityFolder(tmp_path / "c").node_id() != node_id


def test_joining_again_keeps_the_key_and_takes_the_new_certificate(tmp_path: Path) -> None:
    folder = IdentityFolder(tmp_path)
    old = folder.keep(join(folder), AUTHORITY.certificate_pem)
    new = folder.keep(join(folder), AUTHORITY.certificate_pem)
    assert (old.key_pem, old.peer) == (new.key_pem, new.peer)
    assert old.certificate_pem != new.certificate_pem
    assert folder.identity() == new


def test_a_folder_follows_its_node_to_another_cluster(tmp_path: Path) -> None:
    folder = IdentityFolder(tmp_path)
    folder.keep(join(folder), AUTHORITY.certificate_pem)
    other = Authority.create("another")
    moved = folder.keep(join(folder, other), other.certificate_pem)
    assert folder.identity() == moved


def test_what_does_not_fit_the_key_is_not_kept(tmp_path: Path) -> None:
    folder, other = IdentityFolder(tmp_path / "a"), IdentityFolder(tmp_path / "b")
    with pytest.raises(InvalidArgumentError, match="certificate"):
        folder.keep(join(other), AUTHORITY.certificate_pem)
    assert folder.identity() is None


def test_the_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = IdentityFolder(tmp_path / "identity")
    folder.key()
    assert mode(tmp_path / "identity") == 0o700
    assert mode(folder.files.key) == 0o600
    folder.files.key.chmod(0o640)
    with pytest.raises(InvalidArgumentError, match="chmod 600"):
        folder.key()


def test_every_start_is_counted(tmp_path: Path) -> None:
    assert [IdentityFolder(tmp_path).next_incarnation() for _ in range(3)] == [1, 2, 3]
    (tmp_path / "incarnation").write_text("many")
    with pytest.raises(InvalidArgumentError, match=r"incarnation: .* holds no number: 'many'"):
        IdentityFolder(tmp_path).next_incarnation()


def _count(path: Path) -> list[int]:
    return [IdentityFolder(path).next_incarnation() for _ in range(10)]


def test_no_two_starts_have_the_same_number(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(_count, [tmp_path] * 4))
    assert sorted(number for each in counts for number in each) == list(range(1, 41))


def test_those_who_start_at_once_have_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(lambda path: IdentityFolder(path).node_id(), [tmp_path] * 8))
    assert len(set(ids)) == 1


def test_a_crash_while_writing_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = IdentityFolder(tmp_path)
    identity = folder.keep(join(folder), AUTHORITY.certificate_pem)

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidArgumentError, match=r"identity: .*: No space left"):
        folder.keep(join(folder), AUTHORITY.certificate_pem)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        folder.next_incarnation()
    assert folder.identity() == identity
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "authority.pem",
        "certificate.pem",
        "key.pem",
    ]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=r"identity: .*file.* can't be used"):
        IdentityFolder(tmp_path / "file" / "identity")


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    files = IdentityFolder(tmp_path).files
    with pytest.raises(InvalidArgumentError, match=r"key: .*key\.pem can't be read: No such file"):
        files.load()


def test_a_folder_that_another_process_does_not_leave_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_folder, "LOCK_SECONDS", 0.05)
    folder = IdentityFolder(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InvalidArgumentError, match=r"identity: another process .* end it"):
        folder.next_incarnation()
    os.close(handle)
    assert folder.next_incarnation() == 1


def test_an_authority_key_without_its_certificate_is_not_replaced(tmp_path: Path) -> None:
    load_or_make_authority(tmp_path, "mine")
    key = (tmp_path / "authority-key.pem").read_bytes()
    (tmp_path / "authority.pem").unlink()
    with pytest.raises(
        InvalidArgumentError, match=r"authority: .*authority\.pem isn't; put it back"
    ):
        load_or_make_authority(tmp_path, "mine")
    assert (tmp_path / "authority-key.pem").read_bytes() == key


def test_an_authority_that_cannot_be_stored_leaves_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        if len(list(tmp_path.iterdir())) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        load_or_make_authority(tmp_path, "mine")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    load_or_make_authority(tmp_path, "mine")


def test_a_cluster_keeps_its_authority(tmp_path: Path) -> None:
    made = load_or_make_authority(tmp_path / "authority", "mine")
    assert load_or_make_authority(tmp_path / "authority", "renamed") == made
    assert mode(tmp_path / "authority" / "authority-key.pem") == 0o600
    os.unlink(tmp_path / "authority" / "authority-key.pem")  # noqa: PTH108
    with pytest.raises(InvalidArgumentError, match=r"key: .*authority-key\.pem can't be read"):
        load_or_make_authority(tmp_path / "authority", "mine")
