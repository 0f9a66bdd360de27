"""Tiny models on disk and an environment of their own for the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_gguf import TinyModel, build

LAYERS = 6


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six layers that, asked greedily about "h", never stops by itself."""
    model = TinyModel(layers=LAYERS, seed=1, keys={"context_length": 8192})
    return build(tmp_path_factory.mktemp("models") / "tiny.gguf", model)


@pytest.fixture(scope="session")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Slices are kept in a folder of the tests."""
    cache = tmp_path_factory.mktemp("cache")
    return {"MESHNET_CACHE": str(cache), "HOME": str(cache), "MESHNET_API_KEY": ""}
