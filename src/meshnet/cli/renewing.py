"""Keeps the certificate that a long-lived server shows the one of now."""

from __future__ import annotations

import logging
import ssl
import time
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.transport.tls import IdentitySource, present

LOGGER: Final = logging.getLogger(__name__)
RENEWAL_CHECK_SECONDS: Final = 3600.0
"""How often it is looked whether there is another one."""


class ShownCertificate:
    """What a server's context shows, of an identity that is renewed elsewhere."""

    def __init__(self, server: str, identity: IdentitySource, context: ssl.SSLContext) -> None:
        """``server``: what the log calls it."""
        self._server, self._identity, self._context = server, identity, context
        self._due_at = time.monotonic() + RENEWAL_CHECK_SECONDS

    def renew(self) -> None:
        """Show the certificate of now, if it is time to look; to be called now and then."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + RENEWAL_CHECK_SECONDS
        try:
            present(self._context, self._identity.load())
        except InvalidArgumentError as error:
            LOGGER.warning("%s keeps its old certificate: %s", self._server, error.message)
