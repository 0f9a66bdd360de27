"""The ``meshnet`` command."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from meshnet.cli.commands import LazyCommands, add_commands
from meshnet.cli.output import TOLD
from meshnet.cli.runtime import exit_with
from meshnet.domain.errors import MeshnetError

app = typer.Typer(
    name="meshnet",
    cls=LazyCommands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Run a GGUF language model over several machines, each holding a range of its layers.",
)
add_commands(app)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"meshnet {version('meshnet')}")
        raise typer.Exit


@app.callback()
def _common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    shown = logging.StreamHandler(sys.stderr)
    # Files may keep more than the terminal shows, and it has what people are told already.
    shown.setLevel(level)
    shown.addFilter(lambda record: record.name != TOLD.name)
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[shown]
    )
    # libllama's trouble reaches people as the error that it led to.
    logging.getLogger("meshnet.libllama").propagate = verbose


def run_command() -> None:
    """Run what the arguments say: errors become one line and an exit status, no traceback."""
    try:
        app()
    except (MeshnetError, ExceptionGroup) as error:
        exit_with(error)
