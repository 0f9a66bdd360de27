"""Debian's chromium, driven by Playwright, and what a page did that it shouldn't have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.async_api import ConsoleMessage, Page, async_playwright

CHROMIUM = Path("/usr/bin/chromium")


@dataclass
class Watched:
    """A page under watch."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings on its console, and exceptions that nobody caught."""
    requested: list[str] = field(default_factory=list)

    def hear(self, message: ConsoleMessage) -> None:
        """Note a console message that is a complaint."""
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def require_clean(self, url: str) -> None:
        """Nothing went wrong in the page, and it asked no other host for anything."""
        assert not self.complaints, self.complaints
        foreign = [it for it in self.requested if not it.startswith(f"{url}/")]
        assert not foreign, foreign
        assert self.requested


@asynccontextmanager
async def browsing(
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Literal["dark", "light"] = "light",
    still: bool = False,
) -> AsyncIterator[Watched]:
    """A page of a browser that knows nothing; ``still`` asks for no motion."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce" if still else "no-preference",
        )
        page = await context.new_page()
        page.set_default_timeout(15_000)
        watched = Watched(page)
        page.on("console", watched.hear)
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("request", lambda request: watched.requested.append(request.url))
        try:
            yield watched
        finally:
            await browser.close()
