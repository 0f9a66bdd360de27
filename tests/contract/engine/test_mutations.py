"""Each rule of the engine contract is really checked: an engine that breaks one fails its check.

And no other, so that a failing check says what is wrong. The mutants are libllama's engine with one
line of the rules left out or changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, LifecycleState
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    HealthResult,
    LoadRequest,
    LoadResult,
    MetricsResult,
    Output,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenOutput,
)
from meshnet.engine.contract import CHECKS
from meshnet.engine.contract_bench import ContractViolation
from meshnet.engine.ledger import Admission, CacheSlot, SessionLedger
from meshnet.engine.llamacpp import engine as engine_module
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.engine.llamacpp.exactness import Exactness, measure_exactness
from meshnet.model.cache import SliceCache
from tests.support.llama_bench import load_request
from tests.support.tiny_gguf import TinyModel, build


def fresh(request: StepRequest) -> bool:
    return request.expectation.mode is CacheMode.FRESH


class SaysReadyTooSoon(LlamaShardEngine):
    def health(self) -> HealthResult:
        return HealthResult(LifecycleState.READY)


class ClaimsMtp(LlamaShardEngine):
    def load(self, request: LoadRequest) -> LoadResult:
        loaded = super().load(request)
        self._capabilities = replace(loaded.capabilities, supports_mtp=True)
        return replace(loaded, capabilities=self._capabilities)


class DrawsBySession(LlamaShardEngine):
    """The random draw depends on more than seed and position."""

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        return super().execute([self._keyed(request) for request in requests])

    def _keyed(self, request: StepRequest) -> StepRequest:
        params = request.choice.params
        seed = params.seed + sum(request.key.session_id.encode())
        return replace(request, choice=replace(request.choice, params=replace(params, seed=seed)))


class WrapsTheToken(LlamaShardEngine):
    """Gives a tuple where one token was due."""

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        return [
            replace(result, output=result.tokens()) if result.output and fresh(request) else result
            for request, result in zip(requests, super().execute(requests), strict=True)
        ]


class IgnoresRelease(LlamaShardEngine):
    def release(self, key: SessionKey) -> None:
        return


class ReleasesWithoutEmptying(LlamaShardEngine):
    def release(self, key: SessionKey) -> None:
        self._ledger.release(key)


class SortsResults(LlamaShardEngine):
    """Result i doesn't belong to request i."""

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        return super().execute(sorted(requests, key=lambda request: request.key.session_id))


class DoesntTruncate(LlamaShardEngine):
    def _prepare(self, planned: engine_module._Planned) -> None:
        if planned.admission.opened:
            super()._prepare(planned)


class ForksNothing(LlamaShardEngine):
    def _prepare(self, planned: engine_module._Planned) -> None:
        super()._prepare(replace(planned, admission=replace(planned.admission, copied=None)))


class ForkCutsItsSource(LlamaShardEngine):
    def _prepare(self, planned: engine_module._Planned) -> None:
        super()._prepare(planned)
        if planned.admission.copied is not None:
            self._loaded().truncate(planned.admission.copied, planned.request.position)


class RepeatsTheLastToken(LlamaShardEngine):
    """Gives the choice after the last row for every row."""

    def decode(self, request: DecodeRequest) -> StepResult:
        result = super().decode(request)
        if isinstance(result.output, tuple):
            return replace(result, output=(result.output[-1],) * len(result.output))
        return result


class MixesNeighbours(LlamaShardEngine):
    """A decode step right after another session's gives something else."""

    last: SessionKey | None = None

    def prefill(self, request: PrefillRequest) -> StepResult:
        self.last = request.key
        return super().prefill(request)

    def decode(self, request: DecodeRequest) -> StepResult:
        result = super().decode(request)
        mixed = self.last != request.key
        self.last = request.key
        if mixed and isinstance(result.output, TokenOutput):
            return replace(result, output=TokenOutput(result.output.token_id + 1))
        return result


class WrapsTokenIds(LlamaShardEngine):
    """Takes ids outside the vocabulary."""

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        return super().execute([self._inside(request) for request in requests])

    def _inside(self, request: StepRequest) -> StepRequest:
        n_vocab = self.capabilities().n_vocab
        return replace(request, token_ids=tuple(token % n_vocab for token in request.token_ids))


class FailsTheWholeBatch(LlamaShardEngine):
    """One step's bad parameters are its neighbours' too."""

    def _made(
        self, batch: list[engine_module._Planned], output: NDArray[np.float32]
    ) -> list[engine_module.Made]:
        made = super()._made(batch, output)
        bad = [each for each in made if isinstance(each, MeshnetError)]
        return [bad[0]] * len(made) if bad else made


class IgnoresGrammars(LlamaShardEngine):
    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        return super().execute([self._freed(request) for request in requests])

    def _freed(self, request: StepRequest) -> StepRequest:
        params = replace(request.choice.params, grammar="")
        return replace(request, choice=replace(request.choice, params=params))


class OpensAnything(SessionLedger):
    """A step of a session that nobody opened finds an empty cache."""

    def _required_len(self, request: StepRequest) -> int:
        unknown = request.key.session_id not in self._epochs
        if unknown and request.expectation.mode is CacheMode.EXACT:
            return request.position
        return super()._required_len(request)


class TakesLongerCaches(SessionLedger):
    """Exact is read as at least."""

    def admit(self, request: StepRequest) -> Admission | StepResult:
        if request.expectation.mode is CacheMode.EXACT:
            truncate = CacheExpectation(CacheMode.TRUNCATE, request.position)
            return super().admit(replace(request, expectation=truncate))
        return super().admit(request)


class SkipsTheEpoch(SessionLedger):
    def _refuse_ended(self, key: SessionKey) -> None:
        if key in self._cancelled:
            super()._refuse_ended(key)


class ForgetsCancelled(SessionLedger):
    def cancel(self, key: SessionKey) -> CacheSlot | None:
        slot = super().cancel(key)
        self._cancelled.pop(key)
        return slot


class CountsNoCancelled(SessionLedger):
    def metrics(self) -> MetricsResult:
        return replace(super().metrics(), cancelled_sessions=0)


class RemembersNoStep(SessionLedger):
    def commit(self, request: StepRequest, output: Output, engine_nanos: int) -> StepResult:
        result = super().commit(request, output, engine_nanos)
        self._slots[request.key].results.clear()
        return result


class AdvancesOnRepeats(SessionLedger):
    def admit(self, request: StepRequest) -> Admission | StepResult:
        admitted = super().admit(request)
        if isinstance(admitted, StepResult):
            self._slots[request.key].past_len += request.rows
        return admitted


class ForksAnyEpoch(SessionLedger):
    def admit(self, request: StepRequest) -> Admission | StepResult:
        source = request.expectation.source
        for held in self._slots:
            if source is not None and held.session_id == source.session_id:
                expectation = replace(request.expectation, source=held)
                return super().admit(replace(request, expectation=expectation))
        return super().admit(request)


class LosesAllAfterALongPrompt(SessionLedger):
    def refused(self, request: StepRequest, error: MeshnetError) -> StepResult:
        result = super().refused(request, error)
        if request.rows > self._context_length:
            self.release_all()
        return result


class EvictsTheOldest(SessionLedger):
    """Makes room for one session more than there may be."""

    def _open(self, request: StepRequest, *, truncate: bool) -> Admission:
        if self._free:
            return super()._open(request, truncate=truncate)
        oldest = self._close(next(iter(self._slots)))
        assert oldest is not None
        return replace(super()._open(request, truncate=truncate), cleared=(oldest.number,))


def with_ledger(kind: type[SessionLedger]) -> type[LlamaShardEngine]:
    """An engine that keeps the rules of that ledger."""

    class Mutant(LlamaShardEngine):
        def load(self, request: LoadRequest) -> LoadResult:
            loaded = super().load(request)
            limits = request.limits
            self._ledger = kind(limits.max_sessions, limits.context_length)
            return loaded

    return Mutant


@dataclass(frozen=True)
class Mutation:
    engine: type[LlamaShardEngine]
    breaks: frozenset[str]


def breaks(
    engine: type[LlamaShardEngine] | type[SessionLedger], *checks: str
) -> tuple[str, Mutation]:
    kind = with_ledger(engine) if issubclass(engine, SessionLedger) else engine
    return engine.__name__, Mutation(kind, frozenset(checks))


MUTATIONS = dict(
    [
        breaks(SaysReadyTooSoon, "health_before_load"),
        breaks(ClaimsMtp, "capabilities_after_load"),
        # That a draw is keyed by seed and position alone is what makes both rules hold.
        breaks(DrawsBySession, "replay_is_identical", "decode_rows"),
        breaks(WrapsTheToken, "output_kind"),
        breaks(OpensAnything, "decode_unopened"),
        breaks(TakesLongerCaches, "wrong_past_len"),
        breaks(SkipsTheEpoch, "stale_epoch"),
        breaks(ForgetsCancelled, "cancel_refuses"),
        breaks(CountsNoCancelled, "metrics_count_cancelled"),
        breaks(IgnoresRelease, "release_forgets"),
        breaks(ReleasesWithoutEmptying, "release_forgets"),
        breaks(SortsResults, "execute_equals_single"),
        breaks(RemembersNoStep, "duplicate_step"),
        breaks(AdvancesOnRepeats, "duplicate_step"),
        breaks(DoesntTruncate, "rollback_is_exact"),
        breaks(ForksNothing, "fork_is_exact"),
        breaks(ForkCutsItsSource, "fork_is_exact"),
        breaks(ForksAnyEpoch, "fork_misses"),
        breaks(RepeatsTheLastToken, "decode_rows"),
        breaks(MixesNeighbours, "interleaved_equals_alone"),
        breaks(LosesAllAfterALongPrompt, "errors_leave_it_working"),
        breaks(WrapsTokenIds, "bad_input_is_refused"),
        breaks(EvictsTheOldest, "sessions_are_bounded"),
        breaks(FailsTheWholeBatch, "bad_choice_is_its_own"),
        breaks(IgnoresGrammars, "grammars_are_kept_or_refused"),
    ]
)


@pytest.fixture(scope="module")
def request_of_whole(tmp_path_factory: pytest.TempPathFactory) -> LoadRequest:
    root = tmp_path_factory.mktemp("mutations")
    model = TinyModel("llama", layers=2, quantization=GGMLQuantizationType.Q8_0)
    cut = SliceCache(root).ensure(build(root / "tiny.gguf", model), LayerRange(0, 2))
    return load_request(cut, EngineLimits(context_length=64, max_sessions=3))


@pytest.fixture(scope="module")
def measured_once() -> Iterator[None]:
    """All engines here hold the same model: what is exact needn't be measured for each."""
    known: list[Exactness] = []

    def measure(context, request, _notes):
        if not known:
            known.append(measure_exactness(context, request))
        return known[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "known_exactness", measure)
        yield


def failing_checks(kind: type[LlamaShardEngine], request: LoadRequest) -> set[str]:
    failing = set()
    for name, check in CHECKS.items():
        made: list[LlamaShardEngine] = []

        def make(made: list[LlamaShardEngine] = made) -> tuple[ShardEngine, LoadRequest]:
            made.append(kind())
            return made[-1], request

        try:
            check(make)
        except ContractViolation:
            failing.add(name)
        finally:
            for engine in made:
                engine.close()
    return failing


def test_every_check_has_a_mutation_of_its_own():
    assert {next(iter(m.breaks)) for m in MUTATIONS.values() if len(m.breaks) == 1} >= (
        CHECKS.keys() - {"replay_is_identical"}
    )


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_fails_its_check_and_no_other(name, request_of_whole):
    mutation = MUTATIONS[name]
    assert failing_checks(mutation.engine, request_of_whole) == mutation.breaks
