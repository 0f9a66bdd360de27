"""What machines and the tracker say to each other, as JSON. Every field is checked on arrival."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from meshnet.domain.ids import Address
from meshnet.tracker.fields import (
    AddressText,
    Count,
    DeviceName,
    DigestText,
    Message,
    Name,
    NodeIdText,
    Pem,
    Problem,
    Rate,
    Seconds,
)
from meshnet.tracker.measurements import (
    LinkReport,
    Neighbour,
    RunsStatus,
    SpeedReport,
    Told,
)

PATH_JOIN = "/join"
PATH_RENEW = "/renew"
PATH_HEARTBEAT = "/heartbeat"
PATH_STATUS = "/status"
PATH_TOKENS = "/tokens"
MAX_BODY_BYTES = 64 * 1024
MAX_REMOVED = 1000
MAX_SLICES = 32
MAX_HOLDERS = 8
MAX_SPEEDS = 16
MAX_LINKS = 8
MAX_NEIGHBOURS = 5
PROMPT_TOKENS = 128


class Phase(StrEnum):
    """How far a machine has come with its layers."""

    FETCHING = "fetching"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class MachineState(StrEnum):
    """What a machine is good for now."""

    READY = "ready"
    FETCHING = "fetching"
    STARTING = "starting"
    FAILED = "failed"
    SPARE = "spare"
    """It is there and holds nothing."""
    DOWN = "down"
    """Its lease is over."""


class JoinRequest(Message):
    """A machine that has a token, and wants a certificate for its key."""

    secret: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    public_key: Pem
    """PEM, SubjectPublicKeyInfo."""
    name: Name
    """What people call the machine; the tracker adds to one that another machine has."""
    proof: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,256}$")]
    """That it has the private key: :func:`meshnet.transport.jointoken.join_proof`."""


class JoinReply(Message):
    """The certificate; the authority's, the machine has checked against the token already."""

    node_id: str
    cluster: str
    certificate: Pem


class RenewRequest(Message):
    """A machine whose certificate ends soon, and wants another for the same key."""

    public_key: Pem


class MachineReport(Message):
    """What a machine has for models."""

    memory_bytes: Count
    """Free for weights and caches, those of its own shard included."""
    bytes_per_second: Rate
    """Of weights, multiplied by one row."""
    cores: Annotated[int, Field(ge=1, le=65_536)]
    disk_bytes: Count
    """Free in the cache folder."""
    devices: Annotated[tuple[DeviceName, ...], Field(max_length=64)] = ()
    """Accelerators, as libllama names them."""
    hours: Annotated[str, StringConstraints(pattern=r"^(\d\d:\d\d-\d\d:\d\d)?$")] = ""
    """When its owner lends it, in UTC and as HH:MM-HH:MM; empty: always."""
    speeds: Annotated[tuple[SpeedReport, ...], Field(max_length=MAX_SPEEDS)] = ()
    """How fast it computes the models that it was measured with."""


class WorkReport(Message):
    """What became of one range of layers here."""

    model: DigestText
    start: Count
    end: Count
    epoch: Count
    phase: Phase
    done_bytes: Count = 0
    """Fetched so far, and of how many; 0 of 0 when not known yet."""
    total_bytes: Count = 0
    address: AddressText | None = None
    """Where the worker is reached; set when ready."""
    recipe: Annotated[str, StringConstraints(max_length=200)] | None = None
    """The digest of what its numbers depend on; set when ready. Only equal ones share a chain."""
    leaving: bool = False
    """Whether it ends once its sessions have: new ones had better go elsewhere."""
    problem: Problem = ""
    """Why it failed; empty else."""

    @model_validator(mode="after")
    def _whole(self) -> WorkReport:
        if self.start >= self.end:
            raise ValueError(f"start {self.start} must be less than end {self.end}")
        if self.phase is Phase.READY and (self.address is None or self.recipe is None):
            raise ValueError("a shard that is ready has an address and a recipe")
        return self


class StepCounts(Message):
    """Steps of one phase since the worker's start."""

    steps: Count = 0
    step_seconds: Seconds = 0.0
    """Sum over steps."""
    waits: Count = 0
    """Sessions' requests; a step may hold several."""
    wait_seconds: Seconds = 0.0
    """Sum over those, from coming in to their step's start."""
    rows: Count = 0
    """Positions computed."""


class LoadReport(Message):
    """How busy the machine's worker is."""

    open_sessions: Count = 0
    max_sessions: Count = 0
    queued_steps: Count = 0
    step_seconds: Seconds = 0.0
    """Mean of the decode steps since the last report; 0 without any."""
    kv_used: Count = 0
    """Positions that its caches hold, of so many that its sessions may hold together."""
    kv_limit: Count = 0
    resident_bytes: Count = 0
    """Memory that the worker has; 0 where the system doesn't say."""
    prefill: StepCounts = StepCounts()
    decode: StepCounts = StepCounts()


class SliceReport(Message):
    """A slice that is complete in a machine's cache: with layer 0 go the embeddings, with the last
    layer the output."""

    model: DigestText
    start: Count
    end: Count

    @model_validator(mode="after")
    def _whole(self) -> SliceReport:
        if self.start >= self.end:
            raise ValueError(f"start {self.start} must be less than end {self.end}")
        return self


class WeightsReport(Message):
    """Which weights a machine gives to others, and where its own came from."""

    address: AddressText | None = None
    """Where it gives them; None: nowhere."""
    slices: Annotated[tuple[SliceReport, ...], Field(max_length=MAX_SLICES)] = ()
    """The last used ones, where there are more."""
    first_bytes: Count = 0
    """Fetched from the first machine since the agent's start, headers included."""
    peer_bytes: Count = 0
    """The same from other machines."""
    given_bytes: Count = 0
    """Given to others in that time."""


class HeartbeatRequest(Message):
    """Sent every few seconds; a machine that stops is taken for gone when its lease is over."""

    incarnation: Count
    """Greater after every start of the agent."""
    machine: MachineReport
    name: Name | None = None
    """What people are to call the machine; None: what they call it already."""
    work: Annotated[tuple[WorkReport, ...], Field(max_length=2)] = ()
    """The range it serves, and one it prepares; none when it has nothing to do."""
    load: LoadReport = LoadReport()
    round_trip_seconds: Seconds = 0.0
    """Of the last heartbeat; 0 for the first."""
    weights: WeightsReport = WeightsReport()
    links: Annotated[tuple[LinkReport, ...] | None, Field(max_length=MAX_LINKS)] = None
    """What it measured of its links; None: what it said before."""

    @property
    def state(self) -> MachineState:
        """What the machine is good for, by the work that has come the furthest."""
        phases = {work.phase for work in self.work}
        for phase in (Phase.READY, Phase.STARTING, Phase.FETCHING, Phase.FAILED):
            if phase in phases:
                return MachineState(phase.value)
        return MachineState.SPARE

    @property
    def worker_address(self) -> Address | None:
        """Where its worker is; None unless one serves. One that goes on is meant before another."""
        ready = [work for work in self.work if work.phase is Phase.READY and work.address]
        found = min(ready, key=lambda work: work.leaving, default=None)
        return None if found is None else Address(found.address or "")


class Serving(Message):
    """How every node of a model runs it: what differs here differs in numbers or in room."""

    context_length: Annotated[int, Field(ge=1, lt=2**31)] = 4096
    sessions: Annotated[int, Field(ge=1, le=256)] = 4
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: bool = False
    allow_unverified: bool = False


class HolderReply(Message):
    """A machine that gives a slice to others."""

    node_id: NodeIdText
    name: Name
    address: AddressText
    start: Count
    end: Count


class AssignmentReply(Message):
    """The layers that a machine is to hold."""

    model: DigestText
    name: str
    start: Count
    end: Count
    total_layers: Count
    epoch: Count
    serving: Serving
    holders: Annotated[tuple[HolderReply, ...], Field(max_length=MAX_HOLDERS)] = ()
    """Whom to ask for these layers before the first machine; told before the fetch, and again now
    and then while it goes on."""


class HeartbeatReply(Message):
    """What the tracker wants of the machine."""

    assignment: AssignmentReply | None = None
    """None: hold nothing."""
    drain: bool = False
    lease_seconds: Seconds
    heartbeat_seconds: Seconds
    relay: AddressText | None = None
    """Where to keep connections, since others can't reach the worker's address; None: nowhere."""
    neighbours: Annotated[tuple[Neighbour, ...] | None, Field(max_length=MAX_NEIGHBOURS)] = None
    """Machines to which it is to measure its links; None: those that it was told before."""
    removed: Annotated[tuple[NodeIdText, ...], Field(max_length=MAX_REMOVED)] = ()
    """Machines that were removed while their certificates may be good still: not to be answered.

    The last ones, where there are more.
    """
    logs_after: Count | None = None
    """Send lines of the log after this time, in microseconds since 1970; None: none are wanted."""


class TokenRequest(Message):
    """A new join token."""

    seconds: Annotated[int, Field(ge=1, le=366 * 86_400)] = 86_400
    """How long it is good."""
    uses: Annotated[int, Field(ge=1, le=100_000)] = 100


class TokenReply(Message):
    """A token's secret part; shown this once."""

    token_id: str
    secret: str
    expires_unix: Count


class Span(Message):
    """Layers, half-open."""

    start: Count
    end: Count


class Way(StrEnum):
    """How others get to a machine's worker."""

    UNKNOWN = "unknown"
    """Its address wasn't tried yet."""
    DIRECT = "direct"
    RELAYED = "relayed"
    NONE = "none"
    """It doesn't answer at its address, and doesn't wait at the relay either."""


class MachineStatus(Message):
    """One machine, as the tracker sees it."""

    node_id: str
    name: str
    state: MachineState
    drained: bool
    silent_seconds: Seconds | None
    """Since its last heartbeat; None if there was none since the tracker started."""
    told: Span | None = None
    """The layers that it is to hold."""
    told_model: DigestText | None = None
    """The model that they are of."""
    work: tuple[WorkReport, ...] = ()
    """What it said of its work."""
    machine: MachineReport | None = None
    load: LoadReport | None = None
    round_trip_seconds: Seconds = 0.0
    way: Way | None = None
    """How others get to its worker; None without one."""
    weights: WeightsReport | None = None
    """Which weights it has for others, and where its own came from."""
    links: tuple[LinkReport, ...] = ()
    """What it measured of its links."""
    step: Told | None = None
    """A decode step of its layers, as predicted and as measured; None where neither is known."""


class ModelStatus(Message):
    """One model, and whether it can be used."""

    digest: DigestText
    name: str
    total_layers: Count
    epoch: Count
    ready: bool
    route: tuple[str, ...] = ()
    """Ids of the machines that would serve the next request, in order."""
    missing: tuple[Span, ...] = ()
    """Layers that no machine holds now."""
    problem: Problem = ""
    """Why it can't be used; empty else."""
    predicted: RunsStatus | None = None
    """What is predicted of the route, for a prompt of :data:`PROMPT_TOKENS`; None without one."""
    ran: RunsStatus | None = None
    """What the last generations took, and what was predicted of them; None without any."""


class TokenStatus(Message):
    """A join token that is good."""

    token_id: str
    expires_unix: Count
    uses: Count
    """How many machines may still join with it."""


class StatusReply(Message):
    """The cluster."""

    cluster: str
    machines: tuple[MachineStatus, ...]
    models: tuple[ModelStatus, ...]
    tokens: tuple[TokenStatus, ...]


class Failure(Message):
    """The body of every refusal."""

    code: str
    message: str
    field: str | None = None
