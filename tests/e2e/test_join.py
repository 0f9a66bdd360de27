"""Machines that join, serve, die and are replaced: each one a command with folders of its own."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from meshnet.domain.errors import NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.transport.seam_client import GrpcTransport
from tests.support.live_cluster import (
    SERVING,
    START_SECONDS,
    Cluster,
    free_port,
    kill,
    ran,
    span,
)
from tests.support.tiny_gguf import TinyModel, build

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path, tiny) -> Cluster:
    return Cluster(tmp_path, tiny, free_port())


async def unsplit(tiny: Path, env: dict[str, str]) -> str:
    options = ("--nodes", "1", "--raw", "--temperature", "0", "--max-tokens", "16", "--json")
    ended = await ran("run", tiny, "h", *options, *SERVING[:2], env=env)
    return str(json.loads(ended.out)["text"])


@pytest.mark.timeout(400)
async def test_machines_join_one_dies_another_takes_over_and_a_killed_tracker_goes_on(
    cluster, tiny, env
):
    expected = await unsplit(tiny, env)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.up())
        refused = await cluster.refusal()
        assert "layers [0, 6)" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1

        victim = await stack.enter_async_context(cluster.joined("second"))
        await stack.enter_async_context(cluster.joined("third"))
        assert await cluster.answer() == expected
        before = await cluster.machines()
        assert {it["state"] for it in before.values()} == {"ready"}
        worker = Address(before["third"]["work"][0]["address"])
        with pytest.raises(NodeUnreachableError):
            await GrpcTransport().peer(worker).capability(10.0)
        told = {name: span(it) for name, it in before.items()}
        assert sorted(told.values()) == [(0, 2), (2, 4), (4, 6)]

        kill(victim)
        refused = await cluster.refusal()
        lost = "[{}, {})".format(*told["second"])
        assert f"layers {lost}" in refused.json()["error"]["message"]
        assert (await cluster.machines())["second"]["state"] == "down"

        await stack.enter_async_context(cluster.joined("fourth"))
        assert await cluster.answer() == expected
        after = await cluster.machines()
        assert span(after["fourth"]) == told["second"]
        assert after["third"]["told"] == before["third"]["told"]

        kill(first)
        await stack.enter_async_context(cluster.up())
        assert await cluster.answer() == expected
        again = await cluster.machines()
        assert {name: it["told"] for name, it in again.items() if it["told"]} == {
            name: it["told"] for name, it in after.items() if it["told"]
        }
        assert again["third"]["work"][0]["address"] == after["third"]["work"][0]["address"]


@pytest.mark.timeout(400)
async def test_a_drained_machine_is_replaced_without_a_refusal(cluster):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster.up())
        for name in ("second", "third"):
            await stack.enter_async_context(cluster.joined(name))
        expected = await cluster.answer()
        await stack.enter_async_context(cluster.joined("spare"))
        ended = await ran("drain", "second", env=cluster.env("first"))
        assert ended.status == 0, ended.err
        async with asyncio.timeout(2 * START_SECONDS):
            while (await cluster.machines())["second"]["told"] is not None:
                response = await cluster.ask()
                assert response.status_code == 200, response.text
                assert response.json()["choices"][0]["text"] == expected
        assert (await cluster.ask()).status_code == 200
        after = await cluster.machines()
        assert after["second"]["state"] in ("ready", "spare")
        assert sorted(span(after[name]) for name in ("first", "third", "spare")) == [
            (0, 2),
            (2, 4),
            (4, 6),
        ]


@pytest.mark.timeout(300)
async def test_each_machine_fetches_its_range_alone(cluster, tiny):
    async with cluster.up(), cluster.joined("second"), cluster.joined("third"):
        await cluster.answer()
        for name in ("second", "third"):
            kept = sum(
                file.stat().st_blocks * 512
                for file in (cluster.root / name / "cache" / "blobs").iterdir()
            )
            assert 0 < kept < 0.6 * tiny.stat().st_size


@pytest.mark.timeout(300)
async def test_two_models_are_served_by_name_and_kept_in_a_store_elsewhere(tmp_path, env):
    keys = {"context_length": 8192}
    models = [
        build(tmp_path / f"{name}.gguf", TinyModel(layers=2, seed=seed, keys=keys))
        for name, seed in (("one", 1), ("two", 2))
    ]
    store = tmp_path / "kept" / "events.db"
    cluster = Cluster(tmp_path, models[0], free_port())
    expected = [await unsplit(model, env) for model in models]
    assert expected[0] != expected[1]
    async with cluster.up(models[1], "--store", store), cluster.joined("second"):
        assert [await cluster.answer(name) for name in ("one", "two")] == expected
        unknown = await cluster.ask("three")
        assert (unknown.status_code, "'one', 'two'" in unknown.text) == (404, True)
        status = await cluster.status()
        assert {it["name"]: it["ready"] for it in status["models"]} == {"one": True, "two": True}
        held = {it["told_model"] for it in status["machines"]}
        assert held == {it["digest"] for it in status["models"]}
        shown = await ran("status", env=cluster.env("second"))
        assert ("0:2 of one" in shown.out, "0:2 of two" in shown.out) == (True, True)
    assert store.exists()
    assert not (tmp_path / "first" / "state" / "tracker" / "cluster.db").exists()

    twice = await ran("up", models[0], models[0], "--port", "0", env=cluster.env("first"))
    assert (twice.status, "once" in twice.said) == (2, True)


@pytest.mark.timeout(300)
async def test_commands_about_the_cluster(cluster):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster.up())
        second = await stack.enter_async_context(cluster.joined("second"))
        # What a member may, and what it takes the tracker's machine for.
        assert {it["name"] for it in (await cluster.status("second"))["machines"]} == {
            "first",
            "second",
        }
        refused = await ran("token", env=cluster.env("second"))
        assert (refused.status, "admin" in refused.said) == (1, True)
        made = await ran("token", "--uses", "1", env=cluster.env("first"))
        assert re.fullmatch(r"meshnet join mesh1_\S+\n", made.out)

        ended = await ran("drain", "second", env=cluster.env("first"))
        assert ended.status == 0, ended.err
        assert (await cluster.machines())["second"]["drained"]
        ended = await ran("undrain", "second", env=cluster.env("second"))
        assert ended.status == 0, ended.err

        ended = await ran("remove", "second", env=cluster.env("first"))
        assert ended.status == 0, ended.err
        over = await second.end()
        assert (over.status, "removed" in over.said) == (1, True)
        refused = await ran("status", env=cluster.env("second"))
        assert (refused.status, "removed" in refused.said) == (1, True)
        await stack.enter_async_context(cluster.joined("second"))
        assert {it["name"] for it in (await cluster.status("second"))["machines"]} == {
            "first",
            "second",
        }

    lonely = await ran("status", env=cluster.env("nobody"))
    assert (lonely.status, "belongs to no cluster" in lonely.said) == (2, True)
    bad = await ran("join", cluster.token[:-4], env=cluster.env("nobody"))
    assert (bad.status, "token" in bad.said) == (2, True)
