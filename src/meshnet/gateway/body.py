"""Reading a request's body, which must be JSON, not too long, and come in time."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.exceptions import HTTPException

from meshnet.gateway.config import GatewayConfig


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """The body; raises ``HTTPException`` with 408, 413 or 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # A page on the web may post any other type to another site without asking that site.
        raise HTTPException(415, "send the body with the header 'Content-Type: application/json'")
    body = bytearray()
    try:
        async with asyncio.timeout(config.client_timeout_seconds):
            async for part in request.stream():
                body += part
                if len(body) > config.max_body_bytes:
                    raise HTTPException(
                        413, f"the body has more than {config.max_body_bytes} bytes"
                    )
    except TimeoutError as error:
        raise HTTPException(
            408, f"the body didn't arrive within {config.client_timeout_seconds:g} s"
        ) from error
    return bytes(body)
