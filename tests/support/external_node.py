"""Nodes with the fixture engine as processes of their own, in Python or in C++."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability, FlowControl, Hop
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import DType
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import N_EMBD, Fault
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.worker import WorkerEvent
from meshnet.wire.narrow import dtypes_for

ROOT = Path(__file__).parents[2]
BINARIES = Path(os.environ.get("MESHNET_NATIVE_BUILD") or ROOT / "build" / "native")
START_SECONDS = 30.0
STOP_SECONDS = 5.0
DIGEST = Digest("sha256:" + "0" * 64)

LAYERS = 6

Language = Literal["python", "native"]


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What a node is to hold and to bear; the same for both languages."""

    layers: LayerRange
    node_id: NodeId
    total_layers: int = LAYERS
    chunk_tokens: int = 8
    context_length: int = 256
    flow: FlowControl = field(default_factory=FlowControl)
    next_address: Address | None = None
    faults: tuple[Fault, ...] = ()
    """In Python alone."""

    def recipe(self) -> Recipe:
        """What the node computes."""
        return Recipe(DIGEST, "fixture", "1", chunk_tokens=self.chunk_tokens)

    def capability(self, dtypes: tuple[DType, ...]) -> Capability:
        """What the node should say of itself."""
        return Capability(
            self.node_id,
            self.layers,
            self.total_layers,
            self.recipe().fingerprint(),
            DIGEST,
            "fixture",
            self.context_length,
            self.flow,
            dtypes,
            next_address=self.next_address,
        )


def native_binary(name: str) -> str:
    """The path of a program of the C++ lane."""
    path = BINARIES / name
    assert path.exists(), f"{path} isn't built; run: make check-native"
    return str(path)


class ExternalNode:
    """A running node process. A context manager: the process ends with it."""

    def __init__(self, language: Language, setup: NodeSetup) -> None:
        self.setup = setup
        self.dtypes = dtypes_for(N_EMBD) if language == "python" else (DType.FLOAT32,)
        command, first_line = _COMMANDS[language](setup)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        self.address = self._address(language, first_line)
        self.hop = Hop(setup.node_id, self.address, setup.layers)

    def _address(self, language: Language, first_line: bytes) -> Address:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(first_line)
        self.process.stdin.flush()
        # A process that doesn't start is killed, so that its silence ends the reading below.
        watch = threading.Timer(START_SECONDS, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        watch.join()
        if language == "native":
            assert line, f"fixture_node ended with status {self.process.wait()}"
            return Address(line.decode().strip())
        event = WorkerEvent.from_json(line)
        assert event.event == "ready", event.status
        return Address(event.address)

    def stop(self) -> int:
        """End the process as its supervisor would, by closing its input; its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()

    def __enter__(self) -> ExternalNode:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.stop()


@contextmanager
def external_chain(
    languages: Sequence[Language], cuts: Sequence[int], **setup: Any
) -> Iterator[list[ExternalNode]]:
    """Nodes that share the layers at ``cuts``, head first; ``setup``: see :class:`NodeSetup`."""
    edges = [0, *cuts, LAYERS]
    with ExitStack() as stack:
        nodes = []
        for number, language in enumerate(languages):
            layers = LayerRange(edges[number], edges[number + 1])
            made = NodeSetup(layers, NodeId(f"{language}-{number}"), **setup)
            nodes.append(stack.enter_context(ExternalNode(language, made)))
        yield nodes


def _python_command(setup: NodeSetup) -> tuple[list[str], bytes]:
    config = NodeConfig(
        setup.node_id,
        setup.layers.start,
        setup.layers.end,
        setup.total_layers,
        FixtureEngineConfig(setup.faults),
        next_address=setup.next_address,
        limits=EngineLimits(setup.context_length, setup.flow.max_sessions),
        flow=setup.flow,
        chunk_tokens=setup.chunk_tokens,
        # The other language's node keeps nothing, and both are to answer alike.
        prefix_cache=False,
    )
    return [sys.executable, "-m", "meshnet.cli.worker"], config.to_json() + b"\n"


def _native_command(setup: NodeSetup) -> tuple[list[str], bytes]:
    fingerprint = setup.recipe().fingerprint()
    options = {
        "--node-id": setup.node_id,
        "--layers": f"{setup.layers.start}:{setup.layers.end}",
        "--total-layers": setup.total_layers,
        "--model-digest": fingerprint.model_artifact_digest,
        "--recipe-digest": fingerprint.runtime_recipe_digest,
        "--recipe-id": fingerprint.recipe_id,
        "--recipe-version": fingerprint.recipe_version,
        "--chunk-tokens": setup.chunk_tokens,
        "--context": setup.context_length,
        "--max-sessions": setup.flow.max_sessions,
        "--credits": setup.flow.chunk_credits,
        "--max-chunk-bytes": setup.flow.max_chunk_bytes,
    }
    if setup.next_address is not None:
        options["--next"] = setup.next_address
    command = [native_binary("fixture_node")]
    for name, value in options.items():
        command += [name, str(value)]
    return command, b""


_COMMANDS = {"python": _python_command, "native": _native_command}
