"""The dashboard in a real browser: over real nodes where they matter, else over scripted ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from playwright.async_api import Page, expect

from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.machines import NodeState
from meshnet.transport.seam_client import GrpcTransport
from tests.support.browser import Watched, browsing
from tests.support.commands import Command, address_of, command
from tests.support.live_gateway import LOCAL, live_gateway
from tests.support.scripted_machines import JOIN_LINE, ScriptedMachines
from tests.support.scripted_model import Script, ScriptedModel

expect.set_options(timeout=10_000)
pytestmark = pytest.mark.browser
BACK_MILLISECONDS = 30_000
MACHINE_MILLISECONDS = 60_000
LONG = {"model": "tiny", "prompt": "h", "max_tokens": 4000, "temperature": 0}
SCRIPT = Script()
NASTY = "<img src=x onerror=\"document.title='run'\"><b>bold</b>"


@asynccontextmanager
async def served(model, env) -> AsyncIterator[tuple[Command, str]]:
    """``meshnet serve`` over two nodes, and its URL."""
    options = ("--port", "0", "--nodes", "2", "--ctx", "5000", "--sessions", "2")
    async with command("serve", model, *options, env=env) as started:
        line = await started.read_line()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url is not None, line
        yield started, url[0]
        started.interrupt()
        await started.end(5.0)


@asynccontextmanager
async def scripted(
    script: Script = SCRIPT, config: GatewayConfig = LOCAL
) -> AsyncIterator[tuple[ScriptedMachines, str]]:
    machines = ScriptedMachines()
    async with live_gateway(ScriptedModel(script), config=config, machines=machines) as url:
        yield machines, url


async def opened(watched: Watched, url: str) -> Page:
    await watched.page.goto(f"{url}/dashboard")
    await expect(watched.page.locator("#live")).to_have_text("Live")
    return watched.page


async def open_sessions(started: Command) -> list[int]:
    counts = []
    for worker in started.workers():
        peer = GrpcTransport().peer(address_of(worker))
        counts.append((await peer.health(5.0)).open_sessions)
        await peer.close()
    return counts


async def overflow(page: Page) -> int:
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(await page.evaluate(wide))


async def test_layers_a_chat_a_cancelled_request_and_a_killed_node_are_seen(tiny, env):
    async with served(tiny, env) as (started, url), browsing() as watched:
        page = await opened(watched, url)
        await expect(page).to_have_title("tiny · Meshnet")
        await expect(page.locator(".seg-layers")).to_have_text(["0\u20132", "3\u20135"])
        await expect(page.locator(".seg .cells i")).to_have_count(6)
        await expect(page.locator("#nodes tr")).to_have_count(2)

        await page.get_by_label("Message").fill("hello")
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Tokens, at most").fill("8")
        await page.get_by_label("Message").press("Enter")
        await expect(page.locator(".turn-note")).to_contain_text("8 tokens")
        await expect(page.locator(".turn.assistant .said")).not_to_be_empty()
        await expect(page.locator("#recent .request")).to_have_count(1)
        await page.locator("#recent summary").click()
        await expect(page.locator("#recent .fall")).to_have_count(4)

        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json=LONG))
            await expect(page.locator("#in-flight .request")).to_have_count(1)
            assert await open_sessions(started) == [1, 1]
            await page.get_by_role("button", name=re.compile("^Cancel ")).click()
            assert (await asked).status_code == 499
        await expect(page.locator("#in-flight .request")).to_have_count(0)
        await expect(page.locator("#recent .is-cancelled")).to_have_text("cancelled")
        assert await open_sessions(started) == [0, 0]

        victim = await started.worker_of("node-2")
        os.kill(victim.pid, signal.SIGSTOP)
        await expect(page.locator('.seg[data-node="node-2"]')).to_have_class("seg down")
        await expect(page.locator("#banners")).to_contain_text("node-2 is down")
        os.kill(victim.pid, signal.SIGKILL)
        second = page.locator('.seg[data-node="node-2"]')
        await expect(second).to_have_class("seg ready", timeout=BACK_MILLISECONDS)
        await expect(page.locator("#banners")).to_be_empty()
        watched.require_clean(url)


@pytest.mark.timeout(240)
async def test_a_machine_joins_by_the_pages_line_and_takes_over_from_one_that_is_drained(
    tiny, tmp_path
):
    def env(name: str) -> dict[str, str]:
        folder = str(tmp_path / name)
        folders = {"MESHNET_CACHE": folder, "MESHNET_STATE": folder, "HOME": folder}
        return {"MESHNET_API_KEY": "", **folders}

    where = ("--listen", "127.0.0.1:0", "--port", "0", "--name", "first", "--threads", "1")
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(command("up", tiny, *where, env=env("first")))
        lines = [await up.read_line(60.0), await up.read_line(60.0)]
        url = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
        assert url is not None, lines
        watched = await stack.enter_async_context(browsing())
        page = await opened(watched, url[0])
        segments = page.locator(".seg")
        await expect(segments).to_have_class(["seg ready"], timeout=MACHINE_MILLISECONDS)
        await expect(page.locator(".seg-name")).to_have_text(["first"])

        await page.get_by_role("button", name="Add a machine").click()
        await expect(page.get_by_label("Command")).not_to_have_value("")
        line = await page.get_by_label("Command").input_value()
        await page.get_by_role("button", name="Close").click()
        more = (*line.removeprefix("meshnet ").split(), "--name", "second", "--threads", "1")
        await stack.enter_async_context(command(*more, env=env("second")))
        rows = page.locator("#nodes tr")
        await expect(rows).to_have_count(2, timeout=MACHINE_MILLISECONDS)

        await page.get_by_role("button", name="Drain first").click()
        await page.get_by_role("button", name="Drain it").click()
        second = page.locator(".seg.ready")
        await expect(second.locator(".seg-name")).to_have_text(
            "second", timeout=MACHINE_MILLISECONDS
        )
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Tokens, at most").fill("8")
        await page.get_by_label("Message").fill("hello")
        await page.get_by_label("Message").press("Enter")
        await expect(page.locator(".turn-note")).to_contain_text("8 tokens")
        await expect(page.get_by_role("button", name="Use again first")).to_be_visible()
        watched.require_clean(url[0])


async def test_machines_are_added_drained_and_removed_after_a_question():
    async with scripted() as (machines, url), browsing() as watched:
        page = await opened(watched, url)
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        await page.get_by_role("button", name="Add a machine").click()
        await expect(page.get_by_label("Command")).to_have_value(JOIN_LINE)
        await page.get_by_role("button", name="Copy").click()
        await expect(page.locator("#join-copy")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == JOIN_LINE
        await page.keyboard.press("Escape")
        await expect(page.locator("#join-line")).to_have_value("")

        await page.get_by_role("button", name="Drain laptop").click()
        await page.get_by_role("button", name="Keep it").click()
        assert machines.asked == []
        await page.get_by_role("button", name="Drain laptop").click()
        await page.get_by_role("button", name="Drain it").click()
        await expect(page.locator('.seg[data-node="laptop"]')).to_have_class("seg draining")
        await page.get_by_role("button", name="Use again laptop").click()
        await page.get_by_role("button", name="Use it").click()
        await expect(page.locator('.seg[data-node="laptop"]')).to_have_class("seg ready")
        await page.get_by_role("button", name="Remove laptop").click()
        await page.get_by_role("button", name="Remove it").click()
        await expect(page.locator(".seg.gap")).to_have_count(1)
        await expect(page.locator("#banners")).to_contain_text("Nobody holds layers 12\u201323")
        assert [what for what, _ in machines.asked] == ["drain", "undrain", "remove"]
        watched.require_clean(url)


async def test_what_isnt_offered_isnt_shown():
    async with scripted() as (machines, url), browsing() as watched:
        machines.operations = frozenset()
        page = await opened(watched, url)
        await expect(page.locator("#nodes tr")).to_have_count(4)
        for hidden in ("#join", "#plan", "#plan-link", "#actions-head"):
            await expect(page.locator(hidden)).to_be_hidden()
        await expect(page.get_by_role("button", name=re.compile("Drain|Remove"))).to_have_count(0)


async def test_a_key_is_asked_for_until_it_is_right_and_kept_for_the_tab():
    async with scripted(config=GatewayConfig(api_key="right")) as (_, url), browsing() as watched:
        page = watched.page
        await page.goto(f"{url}/dashboard")
        await page.locator("#key").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.locator("#key-text")).to_contain_text("isn't one")
        await page.locator("#key").fill("right")
        await page.keyboard.press("Enter")
        await expect(page.locator(".seg")).to_have_count(3)
        await page.reload()
        await expect(page.locator(".seg")).to_have_count(3)
        await expect(page.locator("#key-dialog")).to_be_hidden()
        refused = [it for it in watched.complaints if "401" not in it]
        assert refused == []


async def test_what_a_model_says_is_text_and_can_be_stopped():
    async with scripted(Script(NASTY * 20, 0.01)) as (_, url), browsing() as watched:
        page = await opened(watched, url)
        await page.get_by_label("Message").fill("<i>hello</i>")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn.assistant .said")).to_contain_text("<b>bold</b>")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".turn-note")).to_have_text("stopped")
        await expect(page.locator(".turn.user .said")).to_have_text("<i>hello</i>")
        assert await page.locator(".turn img, .turn b, .turn i").count() == 0
        assert await page.title() == "scripted · Meshnet"
        await expect(page.locator("#recent .request")).to_have_count(1)
        watched.require_clean(url)


async def test_an_answer_without_text_says_so():
    async with scripted(Script("")) as (_, url), browsing() as watched:
        page = await opened(watched, url)
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn-note")).to_have_text(re.compile(r"^\d+ tokens?, no text$"))
        watched.require_clean(url)


async def test_a_conversation_that_is_cleared_during_an_answer_begins_anew():
    model = ScriptedModel(Script("never said " * 50, 0.01))
    async with (
        live_gateway(model, machines=ScriptedMachines()) as url,
        browsing() as watched,
    ):
        page = await opened(watched, url)
        for text in ("first", "second"):
            await page.get_by_label("Message").fill(text)
            await page.get_by_role("button", name="Send").click()
            await expect(page.locator(".turn.assistant .said")).to_contain_text("said")
            await page.get_by_role("button", name="Clear").click()
            await expect(page.get_by_role("button", name="Send")).to_be_visible()
        assert [list(each) for each in model.conversations] == [
            [{"role": "user", "content": text}] for text in ("first", "second")
        ]
        watched.require_clean(url)


async def test_another_machine_is_tried_out_and_nothing_is_changed():
    async with scripted() as (machines, url), browsing() as watched:
        page = await opened(watched, url)
        await expect(page.locator(".plan-pace strong")).not_to_be_empty()
        before = await page.locator(".plan-stage").count()
        await page.get_by_role("button", name="+ Another machine").click()
        await page.get_by_label("Speed in GB/s of machine 5").fill("400")
        await expect(page.locator(".delta.up")).to_contain_text("%")
        await page.get_by_label("Context, tokens").fill("90000000")
        await expect(page.locator("#plan-result")).to_contain_text("It doesn't fit")
        await page.get_by_role("button", name="Back to now").click()
        await expect(page.locator(".plan-stage")).to_have_count(before)
        assert machines.asked == []
        watched.require_clean(url)


async def test_everything_is_reached_by_the_keyboard_and_has_a_name():
    async with scripted() as (_, url), browsing() as watched:
        page = await opened(watched, url)
        await expect(page.locator(".plan-stage").first).to_be_visible()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _step in range(80):
            await page.keyboard.press("Tab")
            name = await page.evaluate(
                """() => { const it = document.activeElement;
                  if (it === document.body) return null;
                  const label = it.labels?.[0]?.textContent ?? "";
                  return (it.getAttribute("aria-label") ?? (label || it.textContent)).trim(); }"""
            )
            if name is None:
                break
            assert name, await page.evaluate("document.activeElement.outerHTML")
            reached.add(name)
        for wanted in (
            "Add a machine",
            "Drain laptop",
            "Message",
            "Send",
            "10 min",
            "+ Another machine",
        ):
            assert wanted in reached, reached
        assert any(name.startswith("Tokens a second") for name in reached)


@pytest.mark.parametrize("width", [320, 390, 768])
async def test_a_narrow_screen_needs_no_scrolling_sideways(width):
    async with (
        scripted(Script("word " * 200, 0.02)) as (machines, url),
        browsing(width=width, height=800, still=True) as watched,
    ):
        page = await opened(watched, url)
        await page.get_by_label("Message").fill("hello")
        await page.get_by_label("Message").press("Enter")
        machines.change("laptop", state=NodeState.DOWN, reason="connection refused " * 9)
        await expect(page.locator(".seg.down")).to_have_count(1)
        await expect(page.locator("#in-flight .fall").first).to_be_visible()
        await expect(page.locator(".plan-stage").first).to_be_visible()
        assert await overflow(page) == 0
        await page.get_by_role("button", name="Add a machine").click()
        assert await overflow(page) == 0
        watched.require_clean(url)


async def test_colours_follow_the_system_until_somebody_chooses():
    background = "getComputedStyle(document.body).backgroundColor"
    async with scripted() as (_, url), browsing(scheme="dark") as watched:
        page = await opened(watched, url)
        dark = await page.evaluate(background)
        await page.emulate_media(color_scheme="light")
        light = await page.evaluate(background)
        assert dark != light
        theme = page.get_by_role("button", name=re.compile("Colour theme"))
        await theme.click()
        await theme.click()
        await page.reload()
        assert await page.evaluate(background) == dark
        watched.require_clean(url)


async def test_a_gateway_that_comes_back_is_seen_again():
    machines = ScriptedMachines()
    async with browsing() as watched:
        async with live_gateway(ScriptedModel(), machines=machines) as url:
            page = await opened(watched, url)
        await expect(page.locator("#live")).to_have_text("Not connected")
        await expect(page.locator("#banners")).to_contain_text("The connection was lost")
        await expect(page.locator(".seg")).to_have_count(3)
