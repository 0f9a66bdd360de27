"""A cluster of commands on this machine, each with folders of its own, as several machines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.commands import Command, Ended, command

SERVING = ("--ctx", "8192", "--sessions", "8")
TWO_LAYERS = "332MiB"
"""Room for two of the model's six layers with their caches, and not for three."""
START_SECONDS = 90.0
QUESTION = {"model": "tiny", "prompt": "h", "max_tokens": 16, "temperature": 0}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def ran(*arguments: str | Path, env: dict[str, str]) -> Ended:
    """A command, run to its end."""
    async with command(*arguments, env=env) as started:
        return await started.end(START_SECONDS)


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"no {pattern} in {text!r}"
    return match[0]


@dataclass
class Cluster:
    """Folders for machines, and what the first one printed."""

    root: Path
    model: Path
    port: int
    url: str = ""
    token: str = ""

    def env(self, name: str) -> dict[str, str]:
        """Of a machine with this name."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return {
            "MESHNET_CACHE": str(folder / "cache"),
            "MESHNET_STATE": str(folder / "state"),
            "HOME": str(folder),
            "MESHNET_API_KEY": "",
        }

    @asynccontextmanager
    async def up(self, *more: str | Path) -> AsyncIterator[Command]:
        listen = ("--listen", f"127.0.0.1:{self.port}", "--port", "0", "--name", "first")
        options = (*listen, *SERVING, "--memory", TWO_LAYERS, "--threads", "1")
        async with command("up", self.model, *options, *more, env=self.env("first")) as started:
            self.token = found(r"mesh1_\S+", await started.read_line(START_SECONDS))
            url = r"http://127\.0\.0\.1:\d+"
            self.url = found(url, await started.read_line(START_SECONDS))
            yield started

    @asynccontextmanager
    async def joined(self, name: str) -> AsyncIterator[Command]:
        options = ("--name", name, "--memory", TWO_LAYERS, "--threads", "1")
        async with command("join", self.token, *options, env=self.env(name)) as started:
            line = await started.read_line(START_SECONDS)
            assert f"joined as {name}" in line
            yield started

    async def ask(self, model: str = "tiny") -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            return await client.post("/v1/completions", json=QUESTION | {"model": model})

    async def answer(self, model: str = "tiny") -> str:
        """The model's answer, as soon as there is one."""
        async with asyncio.timeout(START_SECONDS):
            while (response := await self.ask(model)).status_code in (502, 503):  # noqa: ASYNC110
                await asyncio.sleep(0.3)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    async def refusal(self) -> httpx.Response:
        """What the API says once it knows that layers are missing."""
        async with asyncio.timeout(START_SECONDS):
            while (response := await self.ask()).status_code != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.3)
        return response

    async def status(self, name: str = "first") -> dict[str, Any]:
        ended = await ran("status", "--json", env=self.env(name))
        assert ended.status == 0, ended.err
        told: dict[str, Any] = json.loads(ended.out)
        return told

    async def machines(self) -> dict[str, dict[str, Any]]:
        return {it["name"]: it for it in (await self.status())["machines"]}


def span(machine: dict[str, Any]) -> tuple[int, int]:
    """The layers that a machine is to hold."""
    return machine["told"]["start"], machine["told"]["end"]


def kill(started: Command) -> None:
    """As when a machine loses its power."""
    for process in [*started.workers(), psutil.Process(started.pid)]:
        os.kill(process.pid, signal.SIGKILL)
