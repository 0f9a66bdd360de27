"""Options that several commands share, and what they mean."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.generation import Speculation
from meshnet.domain.ids import Address
from meshnet.domain.nodes import FlowControl
from meshnet.domain.recipe import KV_TYPES, require_kv_types
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tensors import DType
from meshnet.engine.base import EngineLimits
from meshnet.node.schedule import Pace

_SIZE = TypeAdapter(ByteSize)
_MOST_SESSIONS = 256
"""libllama keeps no more sequences apart."""


class Optimise(StrEnum):
    """What a model is cut for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


class Boundary(StrEnum):
    """What crosses a seam."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    Q8_0 = "q8_0"
    AUTO = "auto"

    def dtype(self) -> DType | None:
        """The type, or None where the links decide."""
        return None if self is Boundary.AUTO else DType(self.value)


Model = Annotated[
    str,
    typer.Argument(
        help="Path of a GGUF file, its address (https://... or hf://ORG/REPOSITORY/FILE.gguf), or "
        "`demo` (SmolLM2-135M-Instruct, 98 MB, fetched once)."
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="One or several, each the path of a GGUF file, its address (https://... or "
        "hf://ORG/REPOSITORY/FILE.gguf), or `demo`.",
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
OptimiseOption = Annotated[
    Optimise,
    typer.Option(
        "--optimise",
        help="Cut for one reader's wait (latency) or for many at once (throughput).",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, help="Threads a node; default: cores / nodes."),
]
Context = Annotated[
    int, typer.Option("--ctx", "-c", min=1, help="Tokens that prompt and answer may have together.")
]
Sessions = Annotated[
    int, typer.Option("--sessions", min=1, max=_MOST_SESSIONS, help="Generations at once.")
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "--gpu-layers",
        min=0,
        help="So many of a node's last layers are computed on its GPUs; 999 means all.",
    ),
]
FlashAttention = Annotated[bool, typer.Option("--flash-attn", help="Use flash attention.")]
CacheTypeK = Annotated[
    str,
    typer.Option(
        "--cache-type-k", metavar="TYPE", help=f"Type of cached keys: {', '.join(KV_TYPES)}."
    ),
]
CacheTypeV = Annotated[
    str,
    typer.Option(
        "--cache-type-v",
        metavar="TYPE",
        help="Type of cached values, likewise; a quantised one needs --flash-attn.",
    ),
]
Mlock = Annotated[bool, typer.Option("--mlock", help="Keep weights in memory, never swapped out.")]
NoMmap = Annotated[
    bool, typer.Option("--no-mmap", help="Read weights into memory rather than map the file.")
]
BoundaryOption = Annotated[
    Boundary,
    typer.Option(
        "--boundary",
        help="Type of the numbers sent from node to node: float32 is exact, the others are "
        "smaller; auto measures the links.",
    ),
]
AllowUnverified = Annotated[
    bool,
    typer.Option("--allow-unverified", help="Try an architecture that isn't proven; may be wrong."),
]
SpeculationOption = Annotated[
    Speculation,
    typer.Option(
        "--speculation",
        help="Compute rows for guesses at coming tokens: where that is faster (auto), wherever "
        "there is a guess (on), or never (off). The answer stays the same.",
    ),
]
MaxGap = Annotated[
    float,
    typer.Option(
        "--max-gap-ms",
        min=0,
        help="How long a piece of a long prompt may hold up others' tokens on a node; 0: about as "
        "long as their own step takes.",
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache",
        help="Keep no cache of a finished generation for prompts that begin alike.",
    ),
]
Recovery = Annotated[
    float,
    typer.Option(
        "--recovery",
        metavar="SECONDS",
        min=0,
        help="How long an answer whose node was lost waits for the layers to be there again and "
        "then goes on; 0 ends it.",
    ),
]
Otlp = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        metavar="URL",
        help="Send traces to this OTLP/HTTP collector, such as http://127.0.0.1:4318; or set "
        "OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
TraceTokens = Annotated[
    bool, typer.Option("--trace-tokens", help="Trace every token's step, not only the sums.")
]
MachineName = Annotated[
    str | None,
    typer.Option("--name", help="What to call this machine; default: its host name."),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Lend this much memory at most, such as 12GiB."),
]
LentHours = Annotated[
    str,
    typer.Option("--hours", metavar="HH:MM-HH:MM", help="Lend the machine at these hours, in UTC."),
]
CacheSize = Annotated[
    str | None,
    typer.Option(
        "--cache-size",
        metavar="SIZE",
        help="Keep slices of this size in all at most, such as 200GiB; or set MESHNET_CACHE_SIZE.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

_OF_STARTED_NODES = frozenset(
    {
        "nodes",
        "optimise",
        "threads",
        "ctx",
        "sessions",
        "gpu_layers",
        "flash_attn",
        "cache_type_k",
        "cache_type_v",
        "mlock",
        "no_mmap",
        "max_gap_ms",
        "no_prefix_cache",
        "cache_size",
    }
)
"""Parameters of commands that start nodes, and that nodes which already run know nothing of."""


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
    optimise: Optimise = Optimise.LATENCY
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mlock: bool = False
    mmap: bool = True
    max_gap_ms: float = 0.0
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        require_kv_types(self.cache_type_k, self.cache_type_v, flash_attention=self.flash_attention)

    def limits(self) -> EngineLimits:
        """The engine's limits."""
        return EngineLimits(
            self.context_length,
            self.sessions,
            self.threads,
            self.gpu_layers,
            mmap=self.mmap,
            mlock=self.mlock,
        )

    def flow(self) -> FlowControl:
        """The node's bounds."""
        return FlowControl(max_sessions=self.sessions)

    def pace(self) -> Pace:
        """How long a prompt may delay others' tokens."""
        return Pace(self.max_gap_ms / 1e3)


def fixed_boundary(boundary: Boundary) -> DType:
    """The type; raises :class:`InvalidArgumentError` where it would have to be measured."""
    dtype = boundary.dtype()
    if dtype is None:
        raise InvalidArgumentError("boundary", "auto depends on the links between nodes; name one")
    return dtype


def given(context: typer.Context, parameters: Collection[str]) -> list[str]:
    """The options among ``parameters`` that stand on the command line, as they are typed."""
    return [
        next(name for name in parameter.opts if name.startswith("--"))
        for parameter in context.command.params
        if parameter.name in parameters and _is_typed(context, parameter.name)
    ]


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    # By its name: typer carries its own copy of the class in some versions.
    return source is not None and source.name == "COMMANDLINE"


def require_fitting_chain(context: typer.Context, chain: str | None) -> None:
    """Raise :class:`InvalidArgumentError` for a chain with options of nodes yet to be started."""
    unheard = given(context, _OF_STARTED_NODES) if chain is not None else []
    if unheard:
        raise InvalidArgumentError(
            "chain",
            f"its nodes run already, each with options of its own; leave out {', '.join(unheard)}",
        )


def parse_chain(text: str) -> tuple[Address, ...]:
    """Read ``HOST:PORT,HOST:PORT,...``."""
    return tuple(parse_address("chain", part) for part in text.split(","))


def parse_size(field: str, text: str) -> int:
    """Read a size such as ``12GiB``, in bytes; raises :class:`InvalidArgumentError`."""
    try:
        return int(_SIZE.validate_python(text.strip()))
    except ValidationError:
        raise InvalidArgumentError(field, f"{text.strip()!r} is no size, such as 16GiB") from None


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
