"""A client that takes nothing must not hold an answer for ever."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import Message, Send


def patient(send: Send, seconds: float) -> Send:
    """``send`` that raises ``ClientDisconnect`` if the client takes nothing for so long."""

    async def patient_send(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError as error:
            raise ClientDisconnect(f"the client took nothing for {seconds:g} s") from error

    return patient_send
