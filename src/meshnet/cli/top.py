"""``meshnet top``: what the dashboard shows, live on a terminal."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final

import httpx
import typer
from rich.live import Live

from meshnet.cli import options as opt
from meshnet.cli.output import out, print_json
from meshnet.cli.runtime import run_async
from meshnet.cli.settings import Settings
from meshnet.cli.topview import drawn, plain
from meshnet.domain.errors import InvalidArgumentError, MeshnetError, NodeUnreachableError

CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 30.0
"""A gateway says something every fifteen."""
RETRY_SECONDS: Final = 2.0


def top(
    url: Annotated[
        str, typer.Argument(help="Where the gateway is, as `meshnet serve` says.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(help="The gateway's key; or set MESHNET_API_KEY.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the state of now and end, as in a pipe.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Show a gateway's machines and requests, live; Ctrl-C ends it.

    Examples:

      meshnet top

      meshnet top http://10.0.0.1:8000 --json | jq .point.tokens_per_second
    """
    key = api_key or Settings.from_environment().api_key
    run_async(
        _once(url, key, json=json) if once or json or not out.is_terminal else _live(url, key)
    )


async def _once(url: str, key: str | None, *, json: bool) -> None:
    async with aclosing(states(url, key)) as events:
        state = await anext(events, None)
    if state is None:
        raise _silent(url)
    if json:
        print_json({name: value for name, value in state.items() if name != "history"})
        return
    # Not by rich, which would make spaces of the tabs.
    sys.stdout.write("".join(f"{line}\n" for line in plain(state)))
    sys.stdout.flush()


async def _live(url: str, key: str | None) -> None:
    state: dict[str, Any] | None = None
    with Live(console=out, screen=True, auto_refresh=False) as screen:
        while True:
            try:
                async with aclosing(states(url, key)) as events:
                    async for state in events:
                        screen.update(drawn(state, out.width), refresh=True)
            except NodeUnreachableError as error:
                if state is None:
                    raise
                note = f"{error.message}; trying again"
                screen.update(drawn(state, out.width, note), refresh=True)
            if state is None:
                raise _silent(url)
            await asyncio.sleep(RETRY_SECONDS)


def _silent(url: str) -> NodeUnreachableError:
    return NodeUnreachableError(
        f"what answers at {url} ended without telling a state: the gateway is stopping, or it is "
        "another server"
    )


async def states(url: str, key: str | None) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a gateway's dashboard; ends when the gateway does.

    Raises ``NodeUnreachableError`` if it can't be reached or falls silent, and what it refuses as
    ``InvalidArgumentError`` for ``api-key`` or ``url``.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    try:
        async with (
            httpx.AsyncClient(headers=headers, timeout=timeout) as client,
            client.stream("GET", f"{url.rstrip('/')}/dashboard/events") as response,
        ):
            if response.status_code != 200:
                raise await _refusal(url, response)
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield jsonlib.loads(line.removeprefix("data: "))
    except jsonlib.JSONDecodeError as error:
        problem = f"what answers at {url} is no gateway of Meshnet: {error}"
        raise InvalidArgumentError("url", problem) from error
    except httpx.InvalidURL as error:
        raise InvalidArgumentError("url", f"{url!r} is none: {error}") from error
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise InvalidArgumentError("url", f"{url!r}: {error}") from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise NodeUnreachableError(f"can't reach a gateway at {url}: {reason}") from error


async def _refusal(url: str, response: httpx.Response) -> MeshnetError:
    status = response.status_code
    if status in (401, 403):
        return InvalidArgumentError(
            "api-key", f"the gateway at {url} answered {status}; give an operator's key"
        )
    if status == 404:
        return InvalidArgumentError("url", f"what answers at {url} has no dashboard")
    body = (await response.aread())[:200].decode(errors="replace")
    return NodeUnreachableError(f"the gateway at {url} answered {status}: {body}")
