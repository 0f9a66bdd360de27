"""What a chain's model makes of a conversation, with a vocabulary of bytes."""

import math

from meshnet.domain.sampling import SamplingParams
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, Opened, TextDelta, TextRequest
from tests.support.mesh import mesh

BYTES = ByteTokenizer()
Z = ord("z")


async def test_an_answer_that_was_begun_is_the_end_of_the_prompt() -> None:
    async with mesh() as nodes:
        model = await nodes.model()
        user = {"role": "user", "content": "Tell"}
        plain = model.prompt_from_messages([user])
        begun = model.prompt_from_messages([user, {"role": "assistant", "content": "Once"}])
    assert begun == plain + tuple(b"Once")
    assert plain[-11:] == (BYTES.im_start_id, *b"assistant\n")


async def test_who_asks_is_told_of_the_session_before_its_first_token() -> None:
    told: list[Opened] = []
    async with mesh() as nodes:
        model, chain = await nodes.model(), await nodes.chain()
        request = TextRequest((1, 2, 3), max_new_tokens=2, on_open=told.append)
        async for event in model.generate(request):
            assert len(told) == 1, f"{event} came first"
    (opened,) = told
    assert opened.session_id.startswith("gen-")
    assert (opened.hops, opened.cached_tokens) == (chain.hops, 0)


async def test_the_last_events_timings_count_the_bytes_that_were_handed_on() -> None:
    async with mesh((2, 4)) as nodes:
        model = await nodes.model()
        request = TextRequest((1, 2, 3), SamplingParams(temperature=0.0), max_new_tokens=4)
        *_, summary = [event async for event in model.generate(request)]
    assert isinstance(summary, GenerationSummary)
    counted = [hop.boundary_bytes for hop in summary.timings]
    rows = 3 + summary.completion_tokens - 1
    assert counted[-1] == 0
    assert counted[0] == counted[1] > 0
    assert counted[0] % (4 * rows) == 0


class Marked(ByteTokenizer):
    """A vocabulary in which z is a control token."""

    def piece(self, token_id: int, *, special: bool) -> bytes:
        return super().piece(token_id, special=special) if special or token_id != Z else b""


async def test_control_tokens_are_text_where_the_request_asks_for_them() -> None:
    only_z = {token: -math.inf for token in range(BYTES.n_vocab) if token != Z}
    async with mesh() as nodes:
        model = ChainModel("fixture", Marked(), await nodes.chain(), nodes.channels)
        sampling = SamplingParams(temperature=0.0, logit_bias=only_z)
        texts = []
        for shown in (frozenset[int](), frozenset({Z})):
            request = TextRequest((1,), sampling, max_new_tokens=2, shown_tokens=shown)
            events = [event async for event in model.generate(request)]
            texts.append("".join(it.text for it in events if isinstance(it, TextDelta)))
    assert texts == ["", "zz"]
