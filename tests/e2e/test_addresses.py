"""Models that lie on a server: run from their address as from a file."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import command, meshnet, until
from tests.support.range_server import RangeServer, range_server
from tests.support.unsplit import unsplit_tokens

pytestmark = pytest.mark.slow

END_SECONDS = 8.0
"""Less than a silent server is waited for."""
GREEDY = ("--temperature", "0", "--raw", "--json", "--max-tokens", "12")


@pytest.fixture
def served(tiny: Path, tmp_path: Path) -> Iterator[RangeServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    shutil.copy(tiny, folder)
    with range_server(folder) as server:
        yield server


@pytest.fixture
def empty(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment without anything fetched."""
    return env | {"MESHNET_CACHE": str(tmp_path / "cache")}


@pytest.mark.parametrize("nodes", ["1", "3"])
async def test_an_address_answers_as_the_file_does(nodes, tiny, served, empty):
    url = served.url(tiny.name)
    asked = ("run", url, "hello there", *GREEDY, "--nodes", nodes)
    ended = await meshnet(*asked, env=empty)
    assert (ended.status, ended.err) == (0, "")
    assert json.loads(ended.out)["token_ids"] == unsplit_tokens(tiny, "hello there", 12)
    sent = served.sent
    again = await meshnet(*asked, env=empty)
    assert json.loads(again.out)["token_ids"] == json.loads(ended.out)["token_ids"]
    assert served.sent == sent + 1


async def test_a_hub_address_leads_to_the_hub_that_the_environment_names(tiny, served, empty):
    hub = {"HF_ENDPOINT": served.url("").rstrip("/"), "HF_TOKEN": ""}
    address = f"hf://org/repo/{tiny.name}"
    ended = await meshnet("inspect", address, "--json", env=empty | hub)
    assert (ended.status, ended.err) == (0, "")
    seen = json.loads(ended.out)
    assert seen["total_layers"] == 6
    assert seen["path"] == f"{hub['HF_ENDPOINT']}/org/repo/resolve/main/{tiny.name}"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:{port}/none.gguf", "none.gguf: HTTP 404"),
        ("http://example.org/m.gguf", "anybody on the way could change the model; use https://"),
        ("hf://m.gguf", "isn't of the form hf://ORG/REPOSITORY/FILE.gguf"),
    ],
)
async def test_what_is_wrong_with_an_address_is_one_line(address, said, served, empty):
    ended = await meshnet("plan", address.format(port=served.port), "-m", "a:1GiB:1GB/s", env=empty)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.said
    assert "Traceback" not in ended.err


async def test_an_interrupted_fetch_waits_for_no_silent_server(tiny, served, empty, tmp_path):
    url, output = served.url(tiny.name), tmp_path / "slice.gguf"
    looked = await meshnet("inspect", url, env=empty)
    assert looked.status == 0
    before = len(served.requests)
    served.behaviour.stalls = threading.Event()
    async with command("slice", url, "1:5", "-o", output, env=empty) as fetching:
        await until(lambda: len(served.requests) > before + 1, 20)
        fetching.interrupt()
        ended = await fetching.end(END_SECONDS)
    served.behaviour.stalls.set()
    assert (ended.status, ended.err) == (130, "")
    assert not output.exists()
