"""Where the ``meshnet`` command starts: quick to import, so that Ctrl-C has its meaning at once."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the commands, which takes a moment, and run what was asked for."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        # Nothing has been started yet that would have to be ended: no traceback from an import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshnet.cli.main import run_command

    signal.signal(signal.SIGINT, interrupt)
    run_command()
