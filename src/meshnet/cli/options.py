"""Options that several commands share, and what they mean."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated

import typer

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.domain.nodes import FlowControl
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import EngineLimits

Model = Annotated[
    str,
    typer.Argument(
        help="Path of a GGUF file, or `demo` (SmolLM2-135M-Instruct, 98 MB, fetched once)."
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, help="Node processes on this machine.")]
ChainOption = Annotated[
    str | None,
    typer.Option(
        "--chain",
        help="HOST:PORT,... of nodes that already run, head first; just the head if its nodes "
        "know the next one.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, help="Threads a node; default: cores / nodes."),
]
Context = Annotated[
    int, typer.Option("--ctx", "-c", min=1, help="Tokens that prompt and answer may have together.")
]
Sessions = Annotated[int, typer.Option("--sessions", min=1, help="Generations at once.")]
GpuLayers = Annotated[
    int, typer.Option("--gpu-layers", min=0, help="Layers a node keeps on a GPU.")
]
FlashAttention = Annotated[bool, typer.Option("--flash-attn", help="Use flash attention.")]
AllowUnverified = Annotated[
    bool,
    typer.Option("--allow-unverified", help="Try an architecture that isn't proven; may be wrong."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How nodes on this machine are to run."""

    nodes: int
    threads: int
    context_length: int
    sessions: int
    gpu_layers: int = 0
    flash_attention: bool = False
    allow_unverified: bool = False

    def limits(self) -> EngineLimits:
        """The engine's limits."""
        return EngineLimits(self.context_length, self.sessions, self.threads, self.gpu_layers)

    def flow(self) -> FlowControl:
        """The node's bounds."""
        return FlowControl(max_sessions=self.sessions)


def parse_chain(text: str) -> tuple[Address, ...]:
    """Read ``HOST:PORT,HOST:PORT,...``."""
    return tuple(parse_address("chain", part) for part in text.split(","))


def parse_address(field: str, text: str) -> Address:
    """Read ``HOST:PORT``; raises :class:`InvalidArgumentError` naming ``field``."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgumentError(field, f"{text.strip()!r} is not of the form HOST:PORT")
    return Address(text.strip())


def sampling_from(
    temperature: float, top_k: int, top_p: float, min_p: float, repeat: float, seed: int | None
) -> SamplingParams:
    """Sampling parameters; without a seed a random one is drawn."""
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat,
        seed=secrets.randbits(32) if seed is None else seed,
    )
