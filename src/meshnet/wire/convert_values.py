"""Domain values to messages and back, in pairs: what sessions and steps are made of.

``x_from_proto`` checks what came in and raises :class:`MalformedFrameError` naming the field, or a
domain constructor's ``InputError``, which :mod:`meshnet.wire.convert` turns into one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import Message

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.generation import GeneratedToken, GenerationSpec, Speculation
from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.sampling import SamplingParams, TokenLogprob
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

SCHEMA_VERSION = 1
MAX_NAME_LENGTH = 1024

_CACHE_MODES = {
    CacheMode.FRESH: pb.CACHE_MODE_FRESH,
    CacheMode.EXACT: pb.CACHE_MODE_EXACT,
    CacheMode.TRUNCATE: pb.CACHE_MODE_TRUNCATE,
    CacheMode.FORK: pb.CACHE_MODE_FORK,
}

_SPECULATIONS = {
    Speculation.AUTO: pb.SPECULATION_UNSPECIFIED,
    Speculation.OFF: pb.SPECULATION_OFF,
    Speculation.ON: pb.SPECULATION_ON,
}

K = TypeVar("K")
V = TypeVar("V")


def named(value: str, field: str) -> str:
    """``value``, which must have 1 to 1024 characters."""
    if not 1 <= len(value) <= MAX_NAME_LENGTH:
        raise MalformedFrameError(field, f"it must have 1 to {MAX_NAME_LENGTH} characters")
    return value


def require(message: Message, field: str) -> None:
    """Raise unless the message's submessage ``field`` is there."""
    if not message.HasField(field):
        raise MalformedFrameError(field, "it is absent")


def known(table: Mapping[K, V], number: V, field: str) -> K:
    """The domain's value for an enum's number."""
    for value, candidate in table.items():
        if candidate == number:
            return value
    raise MalformedFrameError(field, f"{number} is none of the known values")


def check_schema(version: pb.SchemaVersion) -> None:
    """Refuse a message that this version would misread."""
    if version.number > SCHEMA_VERSION:
        raise MalformedFrameError(
            "schema_version",
            f"the peer speaks version {version.number}, this node up to {SCHEMA_VERSION}; "
            "upgrade the older one",
        )


def fingerprint_to_proto(value: Fingerprint) -> pb.Fingerprint:
    """See :class:`Fingerprint`."""
    return pb.Fingerprint(
        model_artifact_digest=value.model_artifact_digest,
        runtime_recipe_digest=value.runtime_recipe_digest,
        recipe_id=value.recipe_id,
        recipe_version=value.recipe_version,
        catalogue_version=value.catalogue_version,
    )


def fingerprint_from_proto(message: pb.Fingerprint) -> Fingerprint:
    """See :class:`Fingerprint`."""
    return Fingerprint(
        model_artifact_digest=Digest(message.model_artifact_digest),
        runtime_recipe_digest=Digest(message.runtime_recipe_digest),
        recipe_id=message.recipe_id,
        recipe_version=message.recipe_version,
        catalogue_version=message.catalogue_version,
    )


def layers_to_proto(value: LayerRange) -> pb.LayerRange:
    """See :class:`LayerRange`."""
    return pb.LayerRange(start=value.start, end=value.end)


def layers_from_proto(message: pb.LayerRange) -> LayerRange:
    """See :class:`LayerRange`."""
    return LayerRange(message.start, message.end)


def key_from_envelope(envelope: pb.Envelope) -> SessionKey:
    """Session and epoch, after a look at the schema's version."""
    check_schema(envelope.schema_version)
    return key_from_fields(envelope.route_session_id, envelope.route_epoch)


def key_from_fields(session_id: str, epoch: int) -> SessionKey:
    """See :class:`SessionKey`."""
    return SessionKey(RouteSessionId(named(session_id, "route_session_id")), epoch)


def expectation_to_proto(value: CacheExpectation) -> pb.CacheExpectation:
    """See :class:`CacheExpectation`."""
    source = value.source
    return pb.CacheExpectation(
        mode=_CACHE_MODES[value.mode],
        expected_past_len=value.expected_past_len,
        source_session_id="" if source is None else source.session_id,
        source_epoch=0 if source is None else source.route_epoch,
    )


def expectation_from_proto(message: pb.CacheExpectation) -> CacheExpectation:
    """See :class:`CacheExpectation`."""
    mode = known(_CACHE_MODES, message.mode, "cache_expectation.mode")
    if bool(message.source_session_id) is not (mode is CacheMode.FORK):
        raise MalformedFrameError(
            "cache_expectation.source_session_id", "a fork names its source, and nothing else does"
        )
    source: SessionKey | None = None
    if mode is CacheMode.FORK:
        name = named(message.source_session_id, "cache_expectation.source_session_id")
        source = SessionKey(RouteSessionId(name), message.source_epoch)
        if not message.expected_past_len:
            raise MalformedFrameError(
                "cache_expectation.expected_past_len", "a fork takes at least one position"
            )
    return CacheExpectation(mode, message.expected_past_len, source)


def cache_result_to_proto(value: CacheResult) -> pb.CacheResult:
    """See :class:`CacheResult`."""
    return pb.CacheResult(hit=value.hit, past_len=value.past_len)


def cache_result_from_proto(message: pb.CacheResult) -> CacheResult:
    """See :class:`CacheResult`."""
    return CacheResult(message.hit, message.past_len)


def sampling_to_proto(value: SamplingParams) -> pb.SamplingParams:
    """See :class:`SamplingParams`; every field that can be absent is stated."""
    return pb.SamplingParams(
        temperature=value.temperature,
        top_k=value.top_k,
        top_p=value.top_p,
        min_p=value.min_p,
        repeat_penalty=value.repeat_penalty,
        presence_penalty=value.presence_penalty,
        frequency_penalty=value.frequency_penalty,
        penalty_last_n=value.penalty_last_n,
        seed=value.seed,
        logit_biases=[
            pb.LogitBias(token_id=token, bias=bias)
            for token, bias in sorted(value.logit_bias.items())
        ],
        top_logprobs=value.top_logprobs,
        logprobs=value.logprobs,
        grammar=value.grammar,
    )


def sampling_from_proto(message: pb.SamplingParams) -> SamplingParams:
    """See :class:`SamplingParams`; absent fields have their defaults."""
    stated = {
        name: getattr(message, name)
        for name in ("temperature", "top_p", "repeat_penalty", "penalty_last_n")
        if message.HasField(name)
    }
    biases = {bias.token_id: bias.bias for bias in message.logit_biases}
    if len(biases) != len(message.logit_biases):
        raise MalformedFrameError("logit_biases", "a token occurs twice")
    return SamplingParams(
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        seed=message.seed,
        logit_bias=biases,
        top_logprobs=message.top_logprobs,
        logprobs=message.logprobs,
        grammar=message.grammar,
        **stated,
    )


def _speculation(number: int) -> Speculation:
    """A number that isn't stated, or is a newer peer's, leaves the choice to the head."""
    found = (mode for mode, known_number in _SPECULATIONS.items() if known_number == number)
    return next(found, Speculation.AUTO)


def spec_to_proto(value: GenerationSpec) -> pb.GenerationSpec:
    """See :class:`GenerationSpec`."""
    return pb.GenerationSpec(
        prompt=value.prompt,
        sampling=sampling_to_proto(value.sampling),
        max_new_tokens=value.max_new_tokens or 0,
        end_ids=sorted(value.end_ids),
        speculation=_SPECULATIONS[value.speculation],
        generated=value.generated,
    )


def spec_from_proto(message: pb.GenerationSpec) -> GenerationSpec:
    """See :class:`GenerationSpec`."""
    return GenerationSpec(
        prompt=tuple(message.prompt),
        sampling=sampling_from_proto(message.sampling),
        max_new_tokens=message.max_new_tokens or None,
        end_ids=frozenset(message.end_ids),
        speculation=_speculation(message.speculation),
        generated=message.generated,
    )


def token_to_proto(value: GeneratedToken) -> pb.GeneratedToken:
    """See :class:`GeneratedToken`."""
    return pb.GeneratedToken(
        position=value.position,
        token_id=value.token_id,
        logprob=value.logprob,
        top_logprobs=[
            pb.TokenLogprob(token_id=top.token_id, logprob=top.logprob)
            for top in value.top_logprobs
        ],
    )


def token_from_proto(message: pb.GeneratedToken) -> GeneratedToken:
    """See :class:`GeneratedToken`."""
    logprob = message.logprob if message.HasField("logprob") else None
    top = tuple([TokenLogprob(top.token_id, top.logprob) for top in message.top_logprobs])
    if logprob is not None and any(math.isnan(p) for p in (logprob, *(t.logprob for t in top))):
        raise MalformedFrameError("logprob", "it is not a number")
    return GeneratedToken(message.position, message.token_id, logprob, top)
