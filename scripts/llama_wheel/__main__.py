"""Build the pinned llama-cpp-python wheel once for this machine, and reuse it.

The sdist as it comes takes about 22 CPU-minutes; with the flags below it is about 7. The wheel
is kept in a cache folder whose name holds everything that determines the binary: the version, the
build flags, the Python ABI and the CPU features (llama.cpp compiles for the machine it is on).

Usage: python scripts/llama_wheel [--cache DIR] [--print-key]
Prints the wheel's path on standard output, and progress on standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FLAGS = (
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
)
INSTALL_HINTS = {
    "c++": "apt-get install g++     (or the compiler of your distribution)",
    "cc": "apt-get install gcc     (or the compiler of your distribution)",
}


def pinned_requirement() -> str:
    """The exact requirement, read from pyproject.toml so that it is written in one place."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'"(llama-cpp-python==[\w.]+)"', text)
    if found is None:
        sys.exit("pyproject.toml no longer pins llama-cpp-python exactly")
    return found[1]


def cpu_identity() -> str:
    """What GGML_NATIVE looks at: the machine type and, on Linux, the feature flags."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    names = sorted(flags[1].split()) if flags else []
    return f"{platform.machine()} {' '.join(names)}"


def cache_key(requirement: str) -> str:
    parts = {
        "requirement": requirement,
        "flags": FLAGS,
        "extra": os.environ.get("CMAKE_ARGS", ""),
        "lean": (HERE / "lean.cmake").read_text(encoding="utf-8"),
        "abi": sysconfig.get_config_var("SOABI"),
        "cpu": cpu_identity(),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{requirement.replace('==', '-')}-{digest[:16]}"


def require_tools() -> None:
    for tool, hint in INSTALL_HINTS.items():
        if shutil.which(os.environ.get("CXX" if tool == "c++" else "CC", tool)) is None:
            sys.exit(f"building llama-cpp-python needs `{tool}`, which is missing: {hint}")


def run_logged(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Run a command into a log file; on a terminal, show how many build steps are done."""
    show = sys.stderr.isatty()
    with (
        log.open("w", encoding="utf-8") as sink,
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as running,
    ):
        for line in running.stdout or ():
            sink.write(line)
            step = re.match(r"\s*\[(\d+)/(\d+)\]", line)
            if show and step is not None:
                print(f"\r  step {step[1]} of {step[2]}", end="", file=sys.stderr, flush=True)
    if show:
        print(file=sys.stderr)
    return running.returncode


def build(requirement: str, folder: Path) -> Path:
    require_tools()
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment["CMAKE_ARGS"] = " ".join(
        [
            *FLAGS,
            f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={HERE / 'lean.cmake'}",
            os.environ.get("CMAKE_ARGS", ""),
        ]
    ).strip()
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    print(f"building {requirement} for this CPU (a few minutes, once)", file=sys.stderr)
    # The temporary folder is inside the cache so that the last step is a rename, never a half file.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        log = folder / "build.log"
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", scratch]
        command += ["--no-binary", "llama-cpp-python", "-v", requirement]
        code = run_logged(command, environment, log)
        built = list(Path(scratch).glob("llama_cpp_python-*.whl"))
        if code != 0 or not built:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
            sys.exit(f"{tail}\nthe build failed; the whole log is in {log}")
        target = folder / built[0].name
        built[0].rename(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "meshnet" / "wheels"
    parser.add_argument("--cache", type=Path, default=default, help="folder of finished wheels")
    parser.add_argument("--print-key", action="store_true", help="only print the cache key")
    options = parser.parse_args()
    requirement = pinned_requirement()
    key = cache_key(requirement)
    if options.print_key:
        print(key)
        return
    folder = options.cache / key
    finished = sorted(folder.glob("llama_cpp_python-*.whl"))
    print(finished[0] if finished else build(requirement, folder))


if __name__ == "__main__":
    main()
