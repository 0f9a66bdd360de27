"""The ``meshnet`` command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from meshnet.cli import inspect, node, plan, run, serve
from meshnet.cli.runtime import exit_with
from meshnet.domain.errors import MeshnetError

app = typer.Typer(
    name="meshnet",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Run a GGUF language model over several machines, each holding a range of its layers.",
)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("node")(node.node)
app.command("inspect")(inspect.inspect)
app.command("plan")(plan.plan)
app.command("slice")(inspect.slice_model)


@app.callback()
def _common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # libllama's trouble reaches people as the error that it led to.
    logging.getLogger("meshnet.libllama").propagate = verbose


def run_command() -> None:
    """Run what the arguments say: errors become one line and an exit status, no traceback."""
    try:
        app()
    except (MeshnetError, ExceptionGroup) as error:
        exit_with(error)
