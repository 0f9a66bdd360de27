"""The commands' names and one line on each. A command's own modules are imported when it runs.

All of them together take seconds to import, which nobody who asks for help should wait for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, and what its help begins with."""

    module: str
    name: str
    """The function, or the Typer application of a group of commands."""
    help: str


COMMANDS = {
    "run": Entry(
        "run", "run", "Cut MODEL over node processes on this machine and stream an answer."
    ),
    "serve": Entry("serve", "serve", "Serve MODEL behind an OpenAI-compatible HTTP API."),
    "up": Entry(
        "up",
        "up",
        "Begin a cluster that serves MODEL..., and print the line with which others join it.",
    ),
    "join": Entry(
        "join",
        "join",
        "Join a cluster and hold the layers that its tracker chooses, until Ctrl-C.",
    ),
    "status": Entry(
        "clusterwide",
        "status",
        "Show the cluster: its machines, their layers, and whether the models can be used.",
    ),
    "drain": Entry(
        "clusterwide",
        "drain",
        "Let MACHINE finish what it has, while others take over its layers.",
    ),
    "undrain": Entry("clusterwide", "undrain", "Use MACHINE again after a drain."),
    "remove": Entry(
        "clusterwide",
        "remove",
        "Take MACHINE out of the cluster: seconds later nobody takes its certificate.",
    ),
    "token": Entry(
        "clusterwide",
        "token",
        "Print a new line or code to join with, or take a token back. On the tracker's machine "
        "only.",
    ),
    "logs": Entry(
        "logs", "logs", "Show the log of this machine's processes, or of another MACHINE's."
    ),
    "keys": Entry("keys", "app", "Make API keys, limit them, and disable them."),
    "usage": Entry(
        "usage",
        "usage",
        "Show what was used, and the credits: one is a token computed in one layer.",
    ),
    "node": Entry(
        "node", "node", "Serve layers A:B of a model (half-open: B itself is not included)."
    ),
    "inspect": Entry(
        "inspect",
        "inspect",
        "Show what a model is, how large its layers are, where it may be cut, and what fits here.",
    ),
    "plan": Entry(
        "plan",
        "plan",
        "Show which of some machines would hold which layers of MODEL, and how fast that would be.",
    ),
    "top": Entry("top", "top", "Show a gateway's machines and requests, live; Ctrl-C ends it."),
    "slice": Entry(
        "inspect", "slice_model", "Write layers A:B of MODEL as a GGUF file of its own."
    ),
}


def load(name: str) -> Command:
    """The command itself."""
    entry = COMMANDS[name]
    target = getattr(importlib.import_module(f"meshnet.cli.{entry.module}"), entry.name)
    if isinstance(target, typer.Typer):
        command: Command = typer.main.get_group(target)
    else:
        alone = typer.Typer(
            add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
        )
        alone.command(name)(target)
        command = typer.main.get_command(alone)
    command.name = name
    return command


class LazyCommands(TyperGroup):
    """The group of all commands: of those that are only listed, it knows what is said above."""

    _listing = False

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command, or what a list says of it."""
        listed = super().get_command(ctx, cmd_name)
        return listed if listed is None or self._listing else load(cmd_name)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the commands."""
        with self._list():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name."""
        with self._list():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _list(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def add_commands(app: typer.Typer) -> None:
    """List them all in an application whose ``cls`` is :class:`LazyCommands`."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.help)(_listed)


def _listed() -> None:
    """Stands for a command in lists."""
