"""Log lines that name their request."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from meshnet.gateway.errors import Failure

REQUEST_ID: ContextVar[str] = ContextVar("meshnet_request_id", default="-")
"""The id of the request that the current task serves."""

_VALID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class _NamesRequest(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        return f"[{REQUEST_ID.get()}] {msg}", kwargs


log = _NamesRequest(logging.getLogger("meshnet.gateway"))
"""The gateway's logger; every line begins with the request's id."""


def request_id(header: str | None) -> str:
    """The client's own ``x-request-id`` if it can stand in a header and a log, else a new one."""
    if header is not None and _VALID.fullmatch(header):
        return header
    return f"req-{secrets.token_hex(12)}"


def log_failure(error: Exception, failure: Failure) -> None:
    """One line for what is the client's trouble; the traceback as well for a fault of our own.

    Logs are kept, and a refusal may quote what the client sent: of it the code alone is written.
    """
    if failure.http_status == 500:
        log.error("failed: %s", type(error).__name__, exc_info=error)
    elif failure.http_status > 500:
        log.warning("failed (%s): %s", failure.code, error)
    else:
        log.info("refused (%s)", failure.code)
