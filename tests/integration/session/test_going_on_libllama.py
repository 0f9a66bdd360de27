"""On libllama too, a generation whose node dies goes on with the very same bits: tiny models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from meshnet.domain.generation import Speculation
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.session.recovery import RecoveryPolicy
from meshnet.session.service import TextRequest
from tests.support.dying import Dying, dying
from tests.support.llama_mesh import LlamaMesh
from tests.support.mesh import LAYERS
from tests.support.reading import read, undisturbed
from tests.support.tiny_gguf import TinyModel, build

PATIENT = RecoveryPolicy(10.0, 0.001, 0.01)
PROMPT = tuple(b"true, false, true, false, true, false, [true, false")
"""Three chunks of 16 and a rest."""
TOKENS = 24
LIST = 'root ::= "[" item ( ", " item ){5,11} "]"\nitem ::= "true" | "false" | [0-9]{1,3}'
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3),
    "drawn": SamplingParams(
        temperature=0.9,
        seed=11,
        repeat_penalty=1.2,
        frequency_penalty=0.1,
        penalty_last_n=12,
        logit_bias={101: -2.0},
        logprobs=True,
    ),
    "grammar": SamplingParams(temperature=1.0, seed=3, top_p=0.95, logprobs=True, grammar=LIST),
}


@asynccontextmanager
async def tiny(path: Path, cuts: tuple[int, ...], kind: str) -> AsyncIterator[Dying]:
    quantization = GGMLQuantizationType[kind]
    model = build(path / "tiny.gguf", TinyModel(layers=LAYERS, quantization=quantization))
    with Vocabulary.load(model) as vocabulary:
        made = LlamaMesh(model, path / "cache")
        async with dying(made, vocabulary, PATIENT, cuts) as nodes:
            yield nodes


def asked(sampling: SamplingParams, guess: Speculation) -> TextRequest:
    """With a grammar it may end by itself, before the limit."""
    free = not sampling.grammar
    return TextRequest(PROMPT, sampling, TOKENS, ignore_end=free, speculation=guess)


async def every_node_dies(nodes: Dying, request: TextRequest, steps: tuple[int, ...]) -> int:
    """At each of these steps of each node; how often a generation went on."""
    expected = await undisturbed(nodes, request)
    assert len(expected.tokens) > 8
    recovered = 0
    for place in range(len(nodes.mesh.nodes) // 2):
        for step in steps:
            nodes.begin()
            nodes.doom.kill(place, step)
            told, summary = await read(nodes.model, request)
            assert told == expected, (place, step)
            recovered += len(summary.pauses)
            await nodes.mesh.idle()
    return recovered


@pytest.mark.parametrize("kind", ["F16", pytest.param("Q8_0", marks=pytest.mark.slow)])
async def test_the_same_bits_whichever_node_dies(kind, tmp_path):
    async with tiny(tmp_path, (2, 4), kind) as nodes:
        for sampling in SAMPLINGS.values():
            request = asked(sampling, Speculation.OFF)
            assert await every_node_dies(nodes, request, (1, 12)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("guess", [Speculation.OFF, Speculation.ON], ids=["plain", "guessing"])
@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (4,), (5,), (1, 5), (2, 4)], ids=str)
async def test_the_same_bits_wherever_the_model_is_cut(cuts, guess, tmp_path):
    async with tiny(tmp_path, cuts, "Q4_1") as nodes:
        for sampling in SAMPLINGS.values():
            request = asked(sampling, guess)
            steps = (0, 4, 9, 18)
            assert await every_node_dies(nodes, request, steps) >= len(nodes.mesh.nodes)


async def test_the_grammars_state_is_that_of_the_tokens_computed_again(tmp_path):
    sampling = replace(SAMPLINGS["grammar"], temperature=0.0)
    request = TextRequest(PROMPT, sampling, 120, speculation=Speculation.OFF)
    async with tiny(tmp_path, (3,), "F32") as nodes:
        expected = await undisturbed(nodes, request)
        assert expected.text[0] == "[" and expected.text[-1] == "]"
        for step in (5, 12, 20):
            nodes.begin()
            nodes.doom.kill(1, step)
            told, summary = await read(nodes.model, request)
            assert told == expected
            assert len(summary.pauses) == 1
