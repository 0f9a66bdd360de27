"""Nodes of a chain work at the same time: on different sessions, and on a prompt's chunks.

Times are those of the engines' own naps, so that a slow machine stretches both sides alike.
"""

import asyncio
from dataclasses import replace

import pytest

from meshnet.engine.base import EngineCapabilities
from tests.support.mesh import Node, Setup, alone, ask, mesh, prompt_of

STEP_SECONDS = 0.02
CUTS = {2: (3,), 3: (2, 4)}


def span(nodes: list[Node]) -> float:
    """From the first step's begin to the last one's end, over all nodes."""
    naps = [nap for node in nodes for nap in node.naps]
    return max(end for _, end in naps) - min(begin for begin, _ in naps)


def busy(node: Node) -> float:
    """How long a node's engine was at work."""
    return sum(end - begin for begin, end in node.naps)


def one_by_one(node: Node) -> EngineCapabilities:
    """An engine whose sessions can't share a step."""
    return replace(node.engine.capabilities(), exact_sessions=1)


@pytest.mark.parametrize("count", [2, 3])
async def test_nodes_with_enough_sessions_are_all_busy_nearly_all_the_time(count, monkeypatch):
    setup = Setup(step_seconds=dict.fromkeys(range(count), STEP_SECONDS))
    prompts = [prompt_of(4, seed) for seed in range(2 * count)]
    async with mesh(CUTS[count], setup) as chain:
        for node in chain.nodes:
            monkeypatch.setattr(node.engine, "_capabilities", one_by_one(node))
        model = await chain.model()
        answers = await asyncio.gather(*(ask(model, prompt, 12) for prompt in prompts))
        together, work = span(chain.nodes), [busy(node) for node in chain.nodes]
    assert [answer.tokens for answer in answers] == [alone(prompt, 12) for prompt in prompts]
    # One node at a time would take the sum.
    assert sum(work) / together > 0.75 * count


@pytest.mark.parametrize("count", [2, 3])
async def test_a_prompt_of_c_chunks_takes_c_plus_n_minus_1_chunk_times(count):
    chunks = 12
    setup = Setup(step_seconds=dict.fromkeys(range(count), STEP_SECONDS))
    prompt = prompt_of(chunks * setup.chunk_tokens)
    async with mesh(CUTS[count], setup) as chain:
        answer = await ask(await chain.model(), prompt, 1)
        took = span(chain.nodes)
        longest = max(busy(node) / chunks for node in chain.nodes)
    assert answer.tokens == alone(prompt, 1)
    assert took < 1.25 * (chunks + count - 1) * longest
