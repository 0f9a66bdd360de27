"""A machine joins by a short code, each command with folders of its own."""

import re

import pytest

from tests.support.commands import command
from tests.support.live_cluster import START_SECONDS, TWO_LAYERS, Cluster, free_port, ran

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path, tiny) -> Cluster:
    return Cluster(tmp_path, tiny, free_port())


@pytest.mark.timeout(300)
async def test_a_machine_joins_by_the_code_that_the_first_one_prints(cluster):
    at = ("--tracker", f"127.0.0.1:{cluster.port}")
    async with cluster.up():
        made = await ran("token", "--pair", "--uses", "1", env=cluster.env("first"))
        assert re.fullmatch(r"[0-9A-Z]{3}-[0-9A-Z]{3}\n", made.out)
        assert "good for 10 min and 1 machine" in made.said
        code = made.out.strip()

        wrong = await ran("join", *at, "--code", "000-000", env=cluster.env("second"))
        assert (wrong.status, "tries left: 4" in wrong.said) == (1, True)
        options = ("--code", code.lower(), "--name", "second", "--memory", TWO_LAYERS)
        async with command("join", *at, *options, env=cluster.env("second")) as started:
            assert "joined as second" in await started.read_line(START_SECONDS)
            assert "second" in await cluster.machines()
        used = await ran("join", *at, "--code", code, env=cluster.env("third"))
        assert (used.status, "`meshnet token --pair`" in used.said) == (1, True)
        # A member comes back without a code.
        async with command("join", env=cluster.env("second")) as started:
            assert "joined as second" in await started.read_line(START_SECONDS)

        alone = await ran("join", env=cluster.env("third"))
        assert (alone.status, "no terminal to ask for the code" in alone.said) == (2, True)
