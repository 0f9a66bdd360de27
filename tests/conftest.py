"""Fixtures for every test: the real models, and the check that nothing is left running."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from meshnet.model.demo import demo_model, gemma_model

LEAK_SECONDS = 3.0

# On a busy machine an example may take any time; how long a test may take is bounded as a whole.
hypothesis.settings.register_profile("meshnet", deadline=None)
hypothesis.settings.load_profile("meshnet")


@pytest.fixture(scope="session")
def cache_root() -> Path:
    """Where fetched models are kept: the same place that the command uses."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MESHNET_CACHE") or Path(base) / "meshnet")


@pytest.fixture(scope="session")
def smollm2_path(cache_root: Path) -> Path:
    """SmolLM2-135M-Instruct Q4_1: llama, 30 layers, tied embeddings."""
    return demo_model(cache_root)


@pytest.fixture(scope="session")
def gemma3_path(cache_root: Path) -> Path:
    """gemma-3 270M Q4_K_M: gemma3, 18 layers, sliding window."""
    return gemma_model(cache_root)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves a process or a thread behind."""
    before = {thread.ident for thread in threading.enumerate()}
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    deadline = time.monotonic() + LEAK_SECONDS
    while (left := _left(before, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left running: {left}"


def _left(threads: set[int | None], children: set[int]) -> list[object]:
    """Threads and processes that weren't there before."""
    new: list[object] = [
        thread
        for thread in threading.enumerate()
        if thread.ident not in threads and (not thread.daemon or thread.name == "engine")
    ]
    new += [
        child
        for child in psutil.Process().children(recursive=True)
        if child.pid not in children and child.status() != psutil.STATUS_ZOMBIE
    ]
    return new
