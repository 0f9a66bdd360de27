"""``meshnet serve`` as a user starts it, for measurements over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.llamacpp import HERE, Running, free_port, process, until_ready

MODEL = "model"
"""What it calls its model."""


@asynccontextmanager
async def gateway(path: Path, *options: str) -> AsyncIterator[tuple[str, Running]]:
    """Its address once it answers, and its process; ended on the way out."""
    port = str(free_port(HERE))
    command = [sys.executable, "-c", "from meshnet.cli.entry import main; main()", "serve"]
    with process([*command, str(path), "--port", port, "--name", MODEL, *options]) as running:
        url = f"http://{HERE}:{port}"
        await until_ready(f"{url}/v1/models", running)
        yield url, running
