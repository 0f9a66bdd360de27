"""The ``meshnet`` command: arguments and environment in, terminal out."""

from __future__ import annotations

import os

# gRPC reads this when it is first imported, and offers no other way to keep its own log lines,
# about connections whose end Meshnet reports itself, off the terminal.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Workers are started while gRPC's threads run, and its fork handlers can crash such a child before
# it becomes a worker. Nothing here forks without becoming another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# With these its older poller carries what comes and goes: two threads fewer have to wake for each
# message, which on a hop of one token is a fifth of a millisecond.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
