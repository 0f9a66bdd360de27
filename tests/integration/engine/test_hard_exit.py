"""The fixture's hardest fault takes the process with it, like an assertion in native code."""

import subprocess
import sys

PROGRAM = """
from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import LoadRequest
from meshnet.engine.fixture import Fault, FaultKind, FixtureEngine
from meshnet.node.probe import probe_request

recipe = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
engine = FixtureEngine([Fault(FaultKind.HARD_EXIT, 1)])
engine.load(LoadRequest(None, 0, 2, 2, recipe))
for _ in range(2):
    print(engine.prefill(probe_request(engine.capabilities())).status.ok, flush=True)
"""


def test_a_hard_exit_ends_the_process_in_the_middle_of_its_step():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (134, "True\n", "")
