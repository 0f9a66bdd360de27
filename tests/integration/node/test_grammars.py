"""Tokens that follow a grammar are the same on every chain, with guesses and without."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.frames import GenerationDone, SessionFailed, TokenReply
from meshnet.domain.generation import FinishReason, GenerationSpec, Speculation
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StatusCode
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.session.generate import ChainModel
from meshnet.session.service import TextRequest
from tests.support.llama_mesh import llama_mesh
from tests.support.mesh import LAYERS, Mesh, mesh, start
from tests.support.schemas import schema_grammar
from tests.support.tiny_gguf import IM_END, TinyModel, build

LIST = 'root ::= "[" item ( ", " item ){5,11} "]"\nitem ::= "true" | "false" | [0-9]{1,3}'
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 6},
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
}
# As of tools that a model may call: text, or text and then what begins with a marker.
CHOICE = 'root ::= [tr]{40,} ( "[" [0-9]{1,3} "]" )?'
GRAMMARS = {"list": LIST, "schema": schema_grammar(PERSON, "schema"), "choice": CHOICE}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=1.0, seed=11, top_p=0.95, logprobs=True),
    "penalised": SamplingParams(temperature=0.0, repeat_penalty=1.3, penalty_last_n=8),
}
PROMPT = tuple(b"true, false, true, false, true, false, [true, false")


def tiny(path: Path) -> Path:
    return build(path / "tiny.gguf", TinyModel(layers=LAYERS))


def spec_of(grammar: str, params: SamplingParams, **more: object) -> GenerationSpec:
    values = {"prompt": PROMPT, "max_new_tokens": 120, "end_ids": frozenset({IM_END, IM_END - 2})}
    sampling = replace(params, grammar=grammar)
    return GenerationSpec(sampling=sampling, **{**values, **more})  # type: ignore[arg-type]


async def generated(chain: Mesh, spec: GenerationSpec) -> tuple[list[int], object]:
    listener, _ = start(await chain.channel(), chain.terms(), spec)
    tokens: list[int] = []
    while not isinstance(reply := await listener.next(30.0), GenerationDone | SessionFailed):
        if isinstance(reply, TokenReply):
            tokens.append(reply.token.token_id)
    return tokens, reply


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
async def test_the_same_tokens_on_every_chain_with_guesses_and_without(name, tmp_path):
    model = tiny(tmp_path)
    made: dict[str, set[tuple[int, ...]]] = {kind: set() for kind in PARAMS}
    proposed = 0
    for cuts in ((), (2, 4)):
        async with llama_mesh(model, tmp_path / "cache", cuts) as chain:
            for kind, params in PARAMS.items():
                for guess in (Speculation.OFF, Speculation.ON):
                    spec = spec_of(GRAMMARS[name], params, speculation=guess)
                    tokens, done = await generated(chain, spec)
                    assert isinstance(done, GenerationDone), done
                    assert done.finish_reason is FinishReason.STOP or name == "choice"
                    proposed += done.timings[0].proposed_tokens
                    made[kind].add(tuple(tokens))
    assert proposed > 20
    assert all(len(tokens) == 1 for tokens in made.values()), made
    with Vocabulary.load(model) as vocabulary:
        for (only,) in made.values():
            text = b"".join(vocabulary.piece(token, special=False) for token in only).decode()
            if name == "list":
                assert re.fullmatch(r"\[(?:(?:true|false|\d{1,3})(?:, |\]$)){6,12}", text), text
            elif name == "choice":
                assert re.fullmatch(r"[tr]{40,}(\[(\d{1,3}\]?)?)?", text), text
            else:
                assert set(json.loads(text)) == {"name", "ages"}


async def test_a_generation_that_is_taken_up_again_goes_on_with_its_grammar(tmp_path):
    async with llama_mesh(tiny(tmp_path), tmp_path / "cache", (3,)) as chain:
        params = PARAMS["drawn"]
        whole, _ = await generated(chain, spec_of(LIST, params))
        for kept in (1, len(whole) // 2, len(whole) - 1):
            prompt = (*PROMPT, *whole[:kept])
            rest, done = await generated(
                chain, spec_of(LIST, params, prompt=prompt, generated=kept)
            )
            assert [*whole[:kept], *rest] == whole, done


async def test_a_limit_cuts_an_answer_off(tmp_path):
    async with llama_mesh(tiny(tmp_path), tmp_path / "cache", ()) as chain:
        tokens, done = await generated(chain, spec_of(LIST, PARAMS["greedy"], max_new_tokens=4))
        assert isinstance(done, GenerationDone)
        assert (len(tokens), done.finish_reason) == (4, FinishReason.LENGTH)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= root",
        'root ::= "a',
        'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "d"',
        'root ::= "a" [^\\x00-\\U0010FFFF]',
    ],
    ids=["left recursion", "syntax", "states without end", "nothing to go on with"],
)
async def test_a_grammar_that_cant_be_followed_ends_its_session_alone(grammar, tmp_path):
    async with llama_mesh(tiny(tmp_path), tmp_path / "cache", (3,)) as chain:
        bias = SamplingParams(temperature=0.0, logit_bias={ord("a"): 50.0})
        _, failed = await generated(chain, spec_of(grammar, bias))
        assert isinstance(failed, SessionFailed), failed
        assert failed.status.code is StatusCode.INVALID_ARGUMENT
        assert failed.status.details["field"] == "grammar"
        tokens, done = await generated(chain, spec_of(LIST, PARAMS["greedy"]))
        assert isinstance(done, GenerationDone) and tokens


async def test_a_chain_whose_tail_cant_follow_grammars_refuses_before_it_computes():
    async with mesh((2,)) as nodes:
        _, failed = await generated(nodes, spec_of(LIST, PARAMS["greedy"]))
        assert isinstance(failed, SessionFailed)
        assert (failed.status.code, failed.status.details["field"]) == (
            StatusCode.INVALID_ARGUMENT,
            "grammar",
        )
        model = await nodes.model()
        steps = nodes.head.engine.metrics().steps
        request = TextRequest(PROMPT, SamplingParams(grammar=LIST))
        with pytest.raises(InvalidArgumentError, match="grammar"):
            await anext(model.generate(request))
        assert nodes.head.engine.metrics().steps == steps


async def test_the_chain_says_whether_it_follows_grammars(tmp_path):
    async with mesh() as nodes:
        assert not (await nodes.chain()).grammars
    async with llama_mesh(tiny(tmp_path), tmp_path / "cache", (3,)) as nodes:
        found = await nodes.chain()
        assert found.grammars
        with Vocabulary.load(tmp_path / "tiny.gguf") as vocabulary:
            model = ChainModel("tiny", vocabulary, found, nodes.channels)
            request = TextRequest(PROMPT, SamplingParams(grammar='root ::= "yes"'))
            events = [event async for event in model.generate(request)]
            assert "".join(getattr(event, "text", "") for event in events) == "yes"
