"""How a command ends, whatever it did."""

import subprocess
import sys

PROGRAM = """
import atexit, gc, sys
# Registered first, so called last.
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0, file=sys.stderr))
from meshnet.cli.entry import main
sys.argv = ["meshnet", "--help"]
main()
"""


def test_a_command_looks_for_no_garbage_when_it_ends():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert "inspect" in ended.stdout
    assert ended.stderr == "frozen True\n"
