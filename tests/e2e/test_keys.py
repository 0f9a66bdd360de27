"""``meshnet keys`` and ``meshnet usage``, with a server between them."""

import json
import re

import httpx
import pytest

from tests.support.commands import command, meshnet, require_clean

pytestmark = pytest.mark.slow

ASK = {"model": "small", "prompt": "h", "max_tokens": 4, "temperature": 0}


@pytest.mark.timeout(240)
async def test_keys_from_making_one_to_what_it_used(tiny, env, tmp_path):
    own = env | {"MESHNET_STATE": str(tmp_path)}
    made = await meshnet("keys", "create", "alice", "--requests-per-minute", "3", env=own)
    assert made.status == 0, made.err
    secret = made.out.strip()

    options = ("--port", "0", "--nodes", "2", "--alias", "small=tiny")
    async with command("serve", tiny, *options, env=own) as started:
        line = await started.read_line()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url is not None, line
        async with httpx.AsyncClient(base_url=url[0], timeout=20) as client:
            assert (await client.post("/v1/completions", json=ASK)).status_code == 401
            client.headers["authorization"] = f"Bearer {secret}"
            listed = (await client.get("/v1/models")).json()["data"]
            assert [entry["id"] for entry in listed] == ["tiny", "small"]
            answer = await client.post("/v1/completions", json=ASK)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-remaining-requests"] == "2"
            stopped = ASK | {"stop": answer.json()["choices"][0]["text"][:1]}
            assert (await client.post("/v1/completions", json=stopped)).status_code == 200
            await client.post("/v1/completions", json=ASK)
            limited = await client.post("/v1/completions", json=ASK)
            assert limited.json()["error"]["code"] == "rate_limit_exceeded"
        started.interrupt()
        require_clean(await started.end())

    used = await meshnet("usage", "--json", env=own)
    (row,) = json.loads(used.out)["usage"]
    assert (row["key"], row["answers"]) == ("alice", 3)
    assert row["completion_tokens"] == 4 + 1 + 4
    assert row["balance"] == -row["token_layers"] < 0
    by_node = json.loads((await meshnet("usage", "--by", "node", "--json", env=own)).out)["usage"]
    assert {entry["node"] for entry in by_node} == {"node-1", "node-2"}
    assert all(entry["balance"] == entry["token_layers"] > 0 for entry in by_node)
    assert all(entry["engine_seconds"] > 0 for entry in by_node)
    assert {entry["node"]: entry["boundary_bytes"] > 0 for entry in by_node} == {
        "node-1": True,
        "node-2": False,
    }
