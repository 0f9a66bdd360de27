"""``meshnet run`` as its users see it: text, JSON, exit status, and an end when they want it."""

import json
import os
import signal
import time

import pytest

from tests.support.commands import Command, command, meshnet, require_clean, until
from tests.support.unsplit import unsplit_tokens

END_SECONDS = 2.0
NOTICED_SECONDS = 1.0
GREEDY = ("--temperature", "0", "--raw")
LONG = ("h", *GREEDY, "--ctx", "8000")
"""Runs for a good while on any machine."""


async def test_text_is_streamed_and_equals_that_of_one_node(tiny, env):
    asked = (tiny, "hello there", *GREEDY, "--max-tokens", "40")
    three = await meshnet("run", *asked, "--nodes", "3", env=env)
    assert (three.status, three.err) == (0, "")
    one = await meshnet("run", *asked, "--nodes", "1", "--json", env=env)
    assert (one.status, one.err) == (0, "")
    answer = json.loads(one.out)
    assert three.out == answer["text"] + "\n"
    assert answer["completion_tokens"] == 40
    assert answer["token_ids"] == unsplit_tokens(tiny, "hello there", 40)
    assert answer["finish_reason"] == "length"
    assert [hop["layers"] for hop in answer["hops"]] == ["[0, 6)"]


async def test_a_prompt_from_standard_input_and_timings_of_every_hop_as_json(tiny, env):
    ended = await meshnet(
        *("run", tiny, "-", *GREEDY, "--json", "--max-tokens", "5"),
        env=env,
        stdin="zwei Wörter".encode(),
    )
    assert (ended.status, ended.err) == (0, "")
    answer = json.loads(ended.out)
    assert answer["token_ids"] == unsplit_tokens(tiny, "zwei Wörter", 5)
    assert [hop["node"] for hop in answer["hops"]] == ["node-1", "node-2", "node-3"]
    assert [hop["layers"] for hop in answer["hops"]] == ["[0, 2)", "[2, 4)", "[4, 6)"]
    assert {hop["prefill_tokens"] for hop in answer["hops"]} == {answer["prompt_tokens"]}


async def test_the_end_of_the_context_is_a_finish_and_no_error(tiny, env):
    ended = await meshnet("run", tiny, "h", *GREEDY, "--ctx", "32", "--json", env=env)
    assert (ended.status, ended.err) == (0, "")
    answer = json.loads(ended.out)
    assert answer["finish_reason"] == "length"
    assert answer["prompt_tokens"] + answer["completion_tokens"] == 32


@pytest.mark.slow
async def test_a_prompt_longer_than_the_context_is_refused(tiny, env):
    ended = await meshnet("run", tiny, "x" * 40, *GREEDY, "--ctx", "32", env=env)
    assert (ended.status, ended.out) == (2, "")
    assert ended.said.startswith("error: the prompt has 40 tokens")
    assert "32" in ended.said


async def in_start_up(started: Command) -> None:
    await started.until_workers(3)


async def in_generation(started: Command) -> None:
    assert await started.read_some()
    started.workers()


@pytest.mark.slow
@pytest.mark.parametrize("when", [in_start_up, in_generation], ids=["start-up", "generation"])
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
async def test_an_interrupt_ends_everything_at_once(tiny, env, when, how):
    async with command("run", tiny, *LONG, env=env) as started:
        await when(started)
        assert started.running
        began = time.monotonic()
        if how == "ctrl-c":
            started.interrupt()
        else:
            started.process.send_signal(signal.SIGTERM)
        ended = await started.end(END_SECONDS)
        assert time.monotonic() - began < END_SECONDS
    assert ended.status == 130
    assert ended.err == ""


@pytest.mark.slow
async def test_an_interrupt_during_prefill_ends_everything_at_once(tiny, env):
    prompt = b"h" * 7900
    async with command("run", tiny, "-", *GREEDY, "--ctx", "8000", env=env, stdin=prompt) as run:
        workers = await run.until_workers(3)
        # A node that computes has a stream to the next one.
        await until(lambda: len(workers[0].net_connections("tcp")) > 2, 20)
        run.interrupt()
        ended = await run.end(END_SECONDS)
    assert (ended.status, ended.err, ended.out) == (130, "", "")


@pytest.mark.slow
async def test_workers_are_gone_soon_after_their_command_was_killed(tiny, env):
    async with command("run", tiny, *LONG, env=env) as started:
        await in_generation(started)
        started.process.kill()
        await started.process.wait()
        await until(lambda: not started.left(), END_SECONDS)


@pytest.mark.parametrize(
    ("node", "layers", "blow", "said"),
    [
        pytest.param(
            *("node-1", "[0, 2)", signal.SIGKILL, "killed (SIGKILL)"), marks=pytest.mark.slow
        ),
        ("node-2", "[2, 4)", signal.SIGABRT, "aborted (SIGABRT)"),
        ("node-3", "[4, 6)", signal.SIGKILL, "killed (SIGKILL)"),
    ],
)
async def test_a_node_that_dies_is_named_within_a_second(tiny, env, node, layers, blow, said):
    async with command("run", tiny, *LONG, env=env) as started:
        await in_generation(started)
        worker = await started.worker_of(node)
        began = time.monotonic()
        os.kill(worker.pid, blow)
        ended = await started.end(10)
        assert time.monotonic() - began < NOTICED_SECONDS
    assert ended.status == 1
    for part in (node, layers, said):
        assert part in ended.said
    require_clean(ended)
