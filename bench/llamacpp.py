"""llama.cpp as the peer: its HTTP server as one process, or over RPC servers on other machines."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.peers import Peers
from bench.setup import Run

READY_SECONDS = 180.0
ANSWER_SECONDS = 600.0
HERE = "127.0.0.1"
# Attention and cache as Meshnet's nodes have them, so that all sides do the same arithmetic. With
# llama.cpp's default of 512 tokens at a time, RPC servers would take turns on a prompt that they
# overlap on with 128.
RECIPE = (
    *("--ubatch-size", "128"),
    *("--flash-attn", "off", "--cache-type-k", "f16", "--cache-type-v", "f16"),
)
RECIPE_OF_BENCH = ("-fa", "0", "-ctk", "f16", "-ctv", "f16")
QUIET = ("--no-ui", "--cache-ram", "0", "--offline", "--log-verbosity", "1", "--fit", "off")

# A child that ends with its parent, also if the parent is killed: PR_SET_PDEATHSIG, SIGKILL.
LEASH = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: what to put before its command, and its address there."""

    host: str = HERE
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How ``llama-server`` is to run."""

    model: Path
    threads: int
    context_length: int
    """Tokens of each slot."""
    slots: int = 1
    batch: int = 2048
    """Tokens of a prompt that are computed before anything else is; the default of llama.cpp."""
    extra: tuple[str, ...] = ()
    """Arguments that come last, and so have the last word."""

    def command(self, peers: Peers, port: int, endpoints: Sequence[str]) -> list[str]:
        """The command line. With RPC servers, all layers are on them, evenly."""
        command = [str(peers.server), "--model", str(self.model), "--host", HERE]
        command += ["--port", str(port), "--threads", str(self.threads)]
        command += ["--ctx-size", str(self.context_length * self.slots)]
        command += ["--parallel", str(self.slots), "--no-kv-unified"]
        command += ["--batch-size", str(self.batch)]
        if endpoints:
            devices = ",".join(f"RPC{number}" for number in range(len(endpoints)))
            command += ["--rpc", ",".join(endpoints), "--device", devices]
            command += ["--n-gpu-layers", "999", "--tensor-split", ",".join("1" for _ in endpoints)]
        return [*command, *RECIPE, *QUIET, *self.extra]


class LlamaServer:
    """A ``llama-server`` that answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HERE}:{port}"
        self._client = httpx.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS)

    async def generate(self, prompt: Sequence[int], count: int) -> Run:
        """One greedy generation of ``count`` tokens; the times are the server's own."""
        request = {
            "prompt": list(prompt),
            "n_predict": count,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        response = await self._client.post("/completion", json=request)
        response.raise_for_status()
        answer = response.json()
        tokens = tuple(answer["tokens"])
        if len(tokens) != count or answer["timings"]["prompt_n"] != len(prompt):
            raise RuntimeError(f"llama-server did something else: {json.dumps(answer)[:500]}")
        timings = answer["timings"]
        return Run(timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3, tokens)

    async def close(self) -> None:
        """Close the connections to it."""
        await self._client.aclose()


@asynccontextmanager
async def llama_server(
    peers: Peers, plan: ServerPlan, places: Sequence[Place] = ()
) -> AsyncIterator[LlamaServer]:
    """A server in this process's network, with an RPC server of as many threads at each place."""
    with ExitStack() as stack:
        endpoints = [
            stack.enter_context(_rpc_server(peers, plan.threads, place)) for place in places
        ]
        port = free_port(HERE)
        running = stack.enter_context(process(plan.command(peers, port, endpoints)))
        server = LlamaServer(port)
        try:
            await until_ready(f"{server.url}/health", running)
            yield server
        finally:
            await server.close()


def free_port(host: str) -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Running:
    """A process under way, and where its output goes."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """End the measurement with the last output of a process that has died."""
        if self.popen.poll() is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise SystemExit("\n".join([*lines, f"{self.name} ended: {self.popen.returncode}"]))


@contextmanager
def process(command: Sequence[str]) -> Iterator[Running]:
    """A process that is ended on the way out, whichever that is."""
    with (
        tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log") as log,
        subprocess.Popen(
            [*LEASH, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as popen,
    ):
        try:
            yield Running(Path(command[0]).name, popen, Path(log.name))
        finally:
            popen.kill()


@contextmanager
def _rpc_server(peers: Peers, threads: int, place: Place) -> Iterator[str]:
    """An RPC server's endpoint."""
    port = free_port(HERE)
    command = [*place.command, str(peers.rpc_server), "--host", place.host]
    command += ["--port", str(port), "--threads", str(threads), "--device", "CPU"]
    with process(command) as running:
        deadline = time.monotonic() + READY_SECONDS
        while not _listens(place.host, port):
            running.check()
            if time.monotonic() > deadline:
                raise SystemExit("an RPC server doesn't start")
            time.sleep(0.05)
        yield f"{place.host}:{port}"


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


async def until_ready(url: str, running: Running) -> None:
    """Wait until ``url`` answers 200."""
    deadline = time.monotonic() + READY_SECONDS
    async with httpx.AsyncClient(timeout=5.0) as client:
        while time.monotonic() < deadline:
            running.check()
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit(f"{running.name} isn't ready after {READY_SECONDS:g} s")
