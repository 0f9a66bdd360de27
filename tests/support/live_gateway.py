"""A gateway on a free port of this machine, for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.machines import Machines
from meshnet.gateway.server import serve
from meshnet.session.service import ModelService

LOCAL = GatewayConfig()


@asynccontextmanager
async def live_gateway(
    *models: ModelService, config: GatewayConfig = LOCAL, machines: Machines | None = None
) -> AsyncIterator[str]:
    """Serve ``models`` and yield the URL; stop at the end, and fail if that takes too long."""
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = create_app(models, config, machines=machines)
    serving = asyncio.create_task(serve(app, config.host, 0, on_ready=url.set_result, stop=stop))
    try:
        await asyncio.wait((serving, url), timeout=5, return_when=asyncio.FIRST_COMPLETED)
        yield url.result()
    finally:
        stop.set()
        async with asyncio.timeout(2):
            await serving


async def until(happened: Callable[[], bool], seconds: float = 1.0) -> None:
    """Wait until something that no event tells of has happened; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
