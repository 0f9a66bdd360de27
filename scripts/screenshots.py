"""Pictures of the dashboard for docs/img: of three real nodes, and of a made-up cluster.

``python scripts/screenshots.py MODEL [FOLDER]`` needs Debian's chromium and Playwright.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx
from playwright.async_api import Page, expect
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from meshnet.cli.top import states
from meshnet.cli.topview import drawn
from meshnet.domain.layers import LayerRange
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.machines import NodeState
from tests.support.browser import browsing
from tests.support.commands import Command, command
from tests.support.live_gateway import live_gateway
from tests.support.scripted_machines import ScriptedMachines
from tests.support.scripted_model import Script, ScriptedModel

MOST_BYTES = 200_000
WIDE, TALL, NARROW = (1280, 860), (1280, 1040), (390, 844)
TERMINAL_COLUMNS = 112
TERMINAL = """<style>body {{ margin: 0 }} pre {{ margin: 0; padding: 22px 26px; width: max-content;
background: #0d121c; color: #e9edf5; font: 14px/1.35 "DejaVu Sans Mono", monospace }} {stylesheet}
</style><pre>{code}</pre>"""
NIGHT = TerminalTheme(
    (13, 18, 28),
    (233, 237, 245),
    [(33, 42, 58), (236, 122, 53), (25, 184, 141), (240, 173, 31),
     (86, 180, 233), (216, 138, 181), (86, 200, 233), (200, 206, 216)],
    [(110, 120, 138), (236, 122, 53), (25, 184, 141), (240, 173, 31),
     (86, 180, 233), (216, 138, 181), (86, 200, 233), (255, 255, 255)],
)  # fmt: skip
QUESTIONS = ("Why is the sky blue?", "Name three rivers of Europe.")
STORIES = ("Once upon a time", "The machine in the attic")
Scheme = Literal["light", "dark"]
Act = Callable[[Page], Awaitable[None]]


async def nothing(_page: Page) -> None:
    """The page as it opens."""


async def picture(
    url: str,
    path: Path,
    act: Act = nothing,
    *,
    size: tuple[int, int] = WIDE,
    scheme: Scheme = "light",
    part: str = "",
) -> None:
    """Open the page, do something on it, and keep what is seen, of a ``part`` or at the top."""
    async with browsing(width=size[0], height=size[1], scheme=scheme) as watched:
        page = watched.page
        await page.goto(f"{url}/dashboard")
        await act(page)
        await page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        await page.wait_for_timeout(400)
        if part:
            # Else the bar at the top may lie over the part.
            await page.evaluate("document.querySelector('.top').style.position = 'static'")
            await page.locator(part).screenshot(path=path)
        else:
            await page.screenshot(path=path)
    require_small(path)


def require_small(path: Path) -> None:
    """End unless the picture is small enough for a repository."""
    size = path.stat().st_size
    print(f"{path} {size >> 10} KiB")
    if size > MOST_BYTES:
        sys.exit(f"{path} has {size} bytes, more than {MOST_BYTES}")


async def ready(page: Page) -> None:
    """Wait until everything is drawn."""
    await expect(page.locator("#live")).to_have_text("Live")
    await expect(page.locator(".plan-stage").first).to_be_visible()
    await page.wait_for_timeout(2500)


async def chatting(page: Page) -> None:
    """Two questions, of which the second is being answered."""
    await ready(page)
    for number, question in enumerate(QUESTIONS):
        await page.get_by_label("Message").fill(question)
        await page.get_by_label("Tokens, at most").fill("120" if number else "48")
        await page.get_by_label("Message").press("Enter")
        if not number:
            await expect(page.locator(".turn-note")).to_be_visible(timeout=60_000)
    await page.wait_for_timeout(3500)
    await page.locator("#recent summary").first.click()


async def planning(page: Page) -> None:
    """One machine more, and a longer context."""
    await ready(page)
    await page.get_by_role("button", name="+ Another machine").click()
    await page.get_by_label(re.compile("Speed in GB/s of machine 4")).fill("2.5")
    await expect(page.locator(".delta")).to_be_visible()


async def terminal(url: str, path: Path) -> None:
    """What ``meshnet top`` shows, as a terminal would."""
    console = Console(file=io.StringIO(), record=True, width=TERMINAL_COLUMNS, force_terminal=True)
    async with aclosing(states(url, None)) as events:
        await anext(events)
        state = await anext(events)
    console.print(drawn(state, TERMINAL_COLUMNS))
    async with browsing(width=1100, height=300) as watched:
        await watched.page.set_content(console.export_html(theme=NIGHT, code_format=TERMINAL))
        await watched.page.locator("pre").screenshot(path=path)
    require_small(path)


@asynccontextmanager
async def served(model: str) -> AsyncIterator[tuple[Command, str]]:
    """``meshnet serve`` over three nodes."""
    options = ("--nodes", "3", "--port", "0", "--name", "smollm2-135m-instruct")
    async with command("serve", model, *options, env={}) as started:
        line = await started.read_line(120)
        url = re.search(r"http://[0-9.:]+", line)
        if url is None:
            sys.exit(f"no URL in {line!r}")
        yield started, url[0]
        started.interrupt()
        await started.end(10)


@asynccontextmanager
async def readers(url: str) -> AsyncIterator[None]:
    """Others who use the model meanwhile."""
    body = {"model": "smollm2-135m-instruct", "max_tokens": 4000, "temperature": 0.8}
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        asked = [
            asyncio.create_task(client.post("/v1/completions", json=body | {"prompt": story}))
            for story in STORIES
        ]
        yield
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def of_real_nodes(model: str, folder: Path) -> None:
    """Idle, busy, planned, and with a node that is down."""
    async with served(model) as (started, url):
        await picture(url, folder / "idle.png", ready)
        async with readers(url):
            await picture(url, folder / "busy.png", chatting, size=TALL)
            await picture(url, folder / "busy-dark.png", chatting, size=TALL, scheme="dark")
            await picture(url, folder / "busy-narrow.png", chatting, size=NARROW)
            narrow = {"requests": "#requests", "playground": "#playground"}
            for name, part in narrow.items():
                path = folder / f"{name}-narrow.png"
                await picture(url, path, chatting, size=NARROW, part=part)
            await terminal(url, folder / "top.png")
        await picture(url, folder / "history.png", ready, part="#history")
        await picture(url, folder / "history-dark.png", ready, part="#history", scheme="dark")
        await picture(url, folder / "plan.png", planning, part="#plan")
        await picture(url, folder / "plan-dark.png", planning, part="#plan", scheme="dark")
        await picture(url, folder / "plan-narrow.png", planning, part="#plan", size=NARROW)
        victim = await started.worker_of("node-2")
        os.kill(victim.pid, signal.SIGSTOP)

        async def down(page: Page) -> None:
            await expect(page.locator(".seg.down")).to_have_count(1)
            await ready(page)

        for scheme, name in (("light", "down.png"), ("dark", "down-dark.png")):
            kind: Scheme = "dark" if scheme == "dark" else "light"
            await picture(url, folder / name, down, scheme=kind)
        os.kill(victim.pid, signal.SIGCONT)


async def of_a_cluster(folder: Path) -> None:
    """A cluster in which one machine loads, one drains and one is spare; and the dialogs."""
    machines = ScriptedMachines()
    machines.change("laptop", state=NodeState.DRAINING)
    machines.change(
        "pi-5", state=NodeState.LOADING, layers=LayerRange(12, 24), progress=0.42, reason="fetches"
    )

    async def joining(page: Page) -> None:
        await ready(page)
        await page.get_by_role("button", name="Add a machine").click()

    async def asked(page: Page) -> None:
        await page.locator("#key").wait_for()

    machines.view = replace(machines.view, model="an-8b-instruct")
    model = ScriptedModel(
        Script("A token passes through every machine in turn. " * 9, 0.06), name="an-8b-instruct"
    )
    async with live_gateway(model, machines=machines) as url:
        await picture(url, folder / "cluster.png", ready)
        await picture(url, folder / "cluster-dark.png", ready, scheme="dark")
        await picture(url, folder / "cluster-narrow.png", ready, size=NARROW)
        await picture(url, folder / "join.png", joining)
    key = GatewayConfig(api_key="secret")
    async with live_gateway(model, machines=machines, config=key) as url:
        await picture(url, folder / "key.png", asked)


async def of_a_lost_gateway(folder: Path) -> None:
    """What is left on the page when the gateway is gone."""
    async with browsing(width=WIDE[0], height=WIDE[1]) as watched:
        async with live_gateway(ScriptedModel(), machines=ScriptedMachines()) as url:
            await watched.page.goto(f"{url}/dashboard")
            await ready(watched.page)
        await expect(watched.page.locator("#live")).to_have_text("Not connected")
        await watched.page.screenshot(path=folder / "lost.png")
    require_small(folder / "lost.png")


async def pictures(model: str, folder: Path) -> None:
    """Make them all."""
    expect.set_options(timeout=30_000)
    await of_a_cluster(folder)
    await of_a_lost_gateway(folder)
    await of_real_nodes(model, folder)


if __name__ == "__main__":
    target = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/img")
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(pictures(sys.argv[1], target))
