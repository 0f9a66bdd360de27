"""The programs that Meshnet is measured against: llama.cpp's server, benchmark and RPC server.

    python -m bench.peers [--jobs 2]

They are built from the source that the pinned llama-cpp-python sdist carries, with the compiler
flags of the wheel that Meshnet runs on, so both sides use the same kernels. The sdist comes through
pip. The result is kept in the cache folder under a name that holds everything that determines it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from meshnet.cli.settings import Settings
from scripts.llama_wheel.__main__ import cpu_identity, pinned_requirement, run_logged

INCLUDE = Path(__file__).resolve().parent / "peers.cmake"
# Nothing is fetched while building: no HTTPS client, no prebuilt web page.
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DGGML_RPC=ON",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
TARGETS = ("ggml-rpc-server", "llama-bench", "llama-server")


@dataclass(frozen=True, slots=True)
class Peers:
    """Finished programs of llama.cpp in one folder, with their libraries beside them."""

    folder: Path

    @property
    def rpc_server(self) -> Path:
        """Offers this machine's processor to a main process elsewhere."""
        return self.folder / "ggml-rpc-server"

    @property
    def bench(self) -> Path:
        """llama.cpp's own benchmark."""
        return self.folder / "llama-bench"

    @property
    def server(self) -> Path:
        """The HTTP server."""
        return self.folder / "llama-server"


def digest() -> str:
    """Everything that determines the programs."""
    parts = {
        "requirement": pinned_requirement(),
        "flags": FLAGS,
        "include": INCLUDE.read_text(encoding="utf-8"),
        "cpu": cpu_identity(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def peers(jobs: int | None = None) -> Peers:
    """The programs, built if they aren't there yet (about 15 CPU-minutes, once)."""
    folder = Settings.from_environment().cache / "peers" / digest()
    found = Peers(folder / "bin")
    if not found.folder.is_dir():
        _build(folder, jobs or os.cpu_count() or 1)
    return found


def _build(folder: Path, jobs: int) -> None:
    for tool, package in (("cmake", "cmake"), ("c++", "g++"), ("make", "make")):
        if shutil.which(tool) is None:
            sys.exit(f"building llama.cpp's programs needs `{tool}`: apt-get install {package}")
    source = _source(folder)
    build = folder / "build"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(source), "-B", str(build), *generator, *FLAGS]
    configure.append(f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={INCLUDE}")
    compile_ = ["cmake", "--build", str(build), "--parallel", str(jobs), "--target", *TARGETS]
    print("building llama.cpp's programs (once, about 15 minutes)", file=sys.stderr)
    for number, command in enumerate((configure, compile_), start=1):
        log = folder / f"build-{number}.log"
        if run_logged(command, dict(os.environ), log) != 0:
            tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-25:])
            sys.exit(f"{tail}\nthe build failed; the whole log is in {log}")
    (build / "bin").rename(folder / "bin")
    for leftover in (source, build):
        shutil.rmtree(leftover)


def _source(folder: Path) -> Path:
    """llama.cpp's source out of the pinned sdist; a finished one of an earlier try is kept."""
    source = folder / "llama.cpp"
    if source.is_dir():
        return source
    requirement = pinned_requirement()
    sdists = folder / "sdist"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
    command += ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(sdists), requirement]
    print(f"fetching the source of {requirement}", file=sys.stderr)
    subprocess.run(command, check=True)
    (archive,) = sdists.glob("llama_cpp_python-*.tar.gz")
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    (carried,) = unpacked.glob("*/vendor/llama.cpp")
    carried.rename(source)
    shutil.rmtree(unpacked)
    shutil.rmtree(sdists)
    return source


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, help="compilers at a time; all cores if not given")
    print(peers(parser.parse_args().jobs).folder)


if __name__ == "__main__":
    main()
