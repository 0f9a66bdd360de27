"""Where the ``meshnet`` command starts: quick to import, so that Ctrl-C has its meaning at once."""

from __future__ import annotations

import atexit
import gc
import signal


def main() -> None:
    """Import the commands, which takes a moment, and run what was asked for."""
    # What is left at the end goes with the process; looking through it for garbage would take most
    # of a second.
    atexit.register(gc.freeze)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        # Nothing has been started yet that would have to be ended: no traceback from an import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshnet.cli.main import run_command

    signal.signal(signal.SIGINT, interrupt)
    run_command()
