"""How long steps of a model's own layers take here, as files of zeros with its shapes tell.

Run it in a process of its own: ``python -m meshnet.engine.llamacpp.rehearsal`` reads a
:class:`Question` as JSON from standard input and prints an :class:`Answer`. All files are loaded at
once and take turns, so that what else the machine does hits each alike, and none finds its weights
in the processor's cache. What was measured undisturbed is remembered for the shapes, the library,
the processor's features and how the layers would be computed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import TypeAdapter

from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.calibration import UNDISTURBED
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.library import library_identity
from meshnet.engine.llamacpp.machine import processor_features
from meshnet.engine.llamacpp.notes import read_note, write_note
from meshnet.engine.sampling import sample

VERSION: Final = 1
SECONDS: Final = 1.0
"""How long steps go on, loading not counted."""
LEAST_ROUNDS: Final = 2
MOST_ROUNDS: Final = 6
PAIRS: Final = 4
"""Of a step after a pause and one right behind it, in a round."""
LONGEST_PAUSE: Final = 0.05
CONTEXT: Final = 1024
_GREEDY: Final = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class RangeFile:
    """A file with the shapes of layers ``[start, end)``."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be measured, and how the layers would be computed."""

    ranges: tuple[RangeFile, ...]
    shapes: str
    """What the files are made of, as a digest."""
    notes: Path
    """The folder in which answers are remembered."""
    total_layers: int
    threads: int
    chunk_tokens: int
    gpu_layers: int = 0
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = False
    variables: tuple[str, ...] = ()
    """Of the environment that may switch kernels, as ``NAME=value``, sorted."""
    anew: bool = False
    """Whether to measure although an answer is remembered."""

    def load_request(self, held: RangeFile) -> LoadRequest:
        """How a range is loaded."""
        nothing = Digest("sha256:" + "0" * 64)
        recipe = Recipe(
            nothing,
            "libllama",
            engine_build="",
            kv_type_k=self.kv_type_k,
            kv_type_v=self.kv_type_v,
            flash_attention=self.flash_attention,
            chunk_tokens=self.chunk_tokens,
        )
        limits = EngineLimits(
            CONTEXT, max_sessions=1, threads=self.threads, gpu_layers=self.gpu_layers
        )
        return LoadRequest(held.path, held.start, held.end, self.total_layers, recipe, limits)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What steps of one range take, in seconds."""

    rested: float
    """One row, after a pause as long as the step."""
    busy: float
    """One row, right after another."""
    chunk: float
    """A chunk of a prompt; on a tail with one row of output."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was measured."""

    times: tuple[StepTimes, ...]
    """Of the ranges, in their order."""
    undisturbed: float
    """The share of the processors' time that the steps got of what they wanted, 0 to 1."""


QUESTIONS: Final = TypeAdapter(Question)
ANSWERS: Final = TypeAdapter(Answer)


def known(question: Question) -> Answer:
    """What was measured before, or is now; raises like :func:`measure`."""
    about = replace(question, ranges=(), notes=Path(), anew=False)
    machine = [VERSION, library_identity(), processor_features()]
    text = json.dumps(machine) + QUESTIONS.dump_json(about).decode()
    note = question.notes / f"{hashlib.sha256(text.encode()).hexdigest()}.rehearsal.json"
    found = None if question.anew else read_note(note, ANSWERS.validate_json)
    if found is not None:
        return found
    answer = measure(question)
    if question.gpu_layers or answer.undisturbed >= UNDISTURBED:
        write_note(note, ANSWERS.dump_json(answer))
    return answer


def measure(question: Question) -> Answer:
    """The ranges' times; raises :class:`EngineError` if libllama refuses one."""
    with ExitStack() as stack:
        stages = []
        for held in question.ranges:
            request = question.load_request(held)
            context = stack.enter_context(closing(LlamaContext(request, max_outputs=1)))
            stages.append(_Stage(context, question.chunk_tokens))
        ends, rounds = time.perf_counter() + SECONDS, 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() < ends):
            for _ in range(PAIRS):
                for stage in stages:
                    stage.pair()
            for stage in stages:
                stage.chunk()
            rounds += 1
        wanted = sum(stage.computing for stage in stages) * question.threads
        got = sum(stage.computed for stage in stages)
        return Answer(tuple(stage.times() for stage in stages), min(got / wanted, 1.0))


@dataclass
class _Stage:
    """One range, its cache filled by a chunk to begin with."""

    context: LlamaContext
    chunk_tokens: int
    computing: float = 0.0
    """Seconds that went by in steps, and of processors that they had meanwhile."""
    computed: float = 0.0
    _position: int = 0
    _rested: list[float] = field(default_factory=list)
    _busy: list[float] = field(default_factory=list)
    _chunks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = (self.chunk_tokens, self.context.n_embd)
        self._rows = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        self._step(self.chunk_tokens)
        self._pause = min(self._timed(1), LONGEST_PAUSE)

    def pair(self) -> None:
        """A step after a pause, and one right behind it."""
        time.sleep(self._pause)
        self._rested.append(self._timed(1))
        self._busy.append(self._timed(1))

    def chunk(self) -> None:
        """A chunk of a prompt."""
        self._chunks.append(self._timed(self.chunk_tokens))

    def times(self) -> StepTimes:
        """What the steps so far took."""
        return StepTimes(*(_typical(each) for each in (self._rested, self._busy, self._chunks)))

    def _timed(self, rows: int) -> float:
        began, had = time.perf_counter(), time.process_time()
        self._step(rows)
        taken = time.perf_counter() - began
        self.computing += taken
        self.computed += time.process_time() - had
        return taken

    def _step(self, rows: int) -> None:
        outputs = 0 if self.context.taps else 1
        made = self.context.decode(
            [Rows(0, self._position, embeddings=self._rows[:rows], outputs=outputs)]
        )
        self._position += rows
        if outputs:
            sample(made[-1], (), _GREEDY, self._position)
        else:
            made.tobytes()


def _typical(seconds: list[float]) -> float:
    """Neither the luckiest, nor one that something else on the machine held up."""
    return float(np.median(seconds))


def main() -> None:
    """Answer the question on standard input."""
    question = QUESTIONS.validate_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(ANSWERS.dump_json(known(question)) + b"\n")


if __name__ == "__main__":
    main()
