"""What machines and the tracker say to each other, as JSON. Every field is checked on arrival."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.transport.address import parse_address

PATH_JOIN = "/join"
PATH_RENEW = "/renew"
PATH_HEARTBEAT = "/heartbeat"
PATH_STATUS = "/status"
PATH_TOKENS = "/tokens"
MAX_BODY_BYTES = 64 * 1024
MAX_REMOVED = 1000


def _address(text: str) -> str:
    try:
        _, port = parse_address(text, "address")
    except InvalidArgumentError as error:
        raise ValueError(error.message) from None
    if port == 0:
        raise ValueError(f"{text!r} has port 0, which nobody can connect to")
    return text


Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, lt=1e18, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
DigestText = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
AddressText = Annotated[str, StringConstraints(max_length=261), AfterValidator(_address)]
"""``host:port`` or ``[ipv6]:port`` that others can connect to."""
NodeIdText = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Problem = Annotated[str, StringConstraints(max_length=1000)]
DeviceName = Annotated[str, StringConstraints(max_length=200)]
Pem = Annotated[str, StringConstraints(min_length=1, max_length=16_384)]


class Message(BaseModel):
    """Frozen; a field that isn't known, or of another type, is refused by its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


class AssignmentReply(Message):
    """The layers that a machine is to hold."""

    model: DigestText
    name: str
    start: Count
    end: Count
    total_layers: Count
    epoch: Count
    serving: Serving


class HeartbeatReply(Message):
    """What the tracker wants of the machine."""

    assignment: AssignmentReply | None = None
    """None: hold nothing."""
    drain: bool = False
    lease_seconds: Seconds
    heartbeat_seconds: Seconds
    relay: AddressText | None = None
    """Where to keep connections, since others can't reach the worker's address; None: nowhere."""
    removed: Annotated[tuple[NodeIdText, ...], Field(max_length=MAX_REMOVED)] = ()
    """Machines that were removed while their certificates may be good still: not to be answered.

    The last ones, where there are more.
    """


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
