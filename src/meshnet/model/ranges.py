"""Reading ranges of files over HTTP: bounded in time, tried again, never of two versions.

RFC 9110 (sections 13.1.5 and 14) says what a server does with ``Range`` and ``If-Range``.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from meshnet.domain.errors import (
    CancelledError,
    InvalidArgumentError,
    ModelFileError,
    ModelNotFoundError,
    NodeUnreachableError,
)
from meshnet.model.gguf_cursor import file_error
from meshnet.model.holders import Reader
from meshnet.model.progress import Unwatched, Watch
from meshnet.model.sources import Patience, RemoteFile, Source, is_private, shown

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LONGEST_WAIT: Final = 30.0
_LOOK_SECONDS: Final = 0.1
"""How often a thread that waits looks whether it is still wanted."""
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LINKED_ETAG: Final = "x-linked-etag"
"""The hub's own header with the digest of a large file, on the answer that leads to its store."""


class RangeClient:
    """Reads the files of one source; may be used by several threads at once.

    Methods raise :class:`NodeUnreachableError` when the server can't be reached, is too slow, or
    breaks off again and again; :class:`ModelNotFoundError` when it doesn't have or give the file;
    :class:`ModelFileError` when the file changed, or it can't give ranges;
    :class:`CancelledError` once ``stop`` is set.
    """

    def __init__(
        self,
        source: Source,
        patience: Patience,
        stop: threading.Event,
        known: Mapping[str, RemoteFile] | None = None,
        watch: Watch | None = None,
    ) -> None:
        patience = source.patience or patience
        self._patience, self._stop, self._aborted = patience, stop, threading.Event()
        self._peer, self._watch = source.peer, watch or Unwatched()
        self._known = dict(known or {})
        self._answers: set[httpx.Response] = set()
        self._lock = threading.Lock()
        try:
            self._client = httpx.Client(
                verify=source.tls or True,
                trust_env=source.tls is None,
                headers={**source.headers, "Accept-Encoding": "identity"},
                # Machines of the cluster have what they give, and send nobody elsewhere.
                follow_redirects=source.tls is None and not source.peer,
                timeout=httpx.Timeout(patience.stall_seconds, connect=patience.connect_seconds),
                limits=httpx.Limits(max_connections=patience.parallel),
            )
        except (ValueError, OSError, httpx.InvalidURL) as error:
            raise InvalidArgumentError("model", f"{source.name}: {error}") from error

    def abort(self) -> None:
        """End all that other threads are reading, with :class:`CancelledError`."""
        self._aborted.set()
        with self._lock:
            for answer in self._answers:
                _end_connection(answer)

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def look(self, url: str, length: int, size: int | None = None) -> tuple[RemoteFile, bytes]:
        """Which version of a file is there, and its first ``length`` bytes, if it has so many."""
        content = bytearray()
        self._fill(content, url, 0, length, size)
        with self._lock:
            return self._known[url], bytes(content)

    def read(self, url: str, offset: int, length: int, size: int) -> bytes:
        """Just those bytes of a file that must have ``size``."""
        content = bytearray()
        self._fill(content, url, offset, length, size)
        return bytes(content)

    def reader(self, files: Sequence[tuple[str, int]]) -> Reader:
        """Adds to a buffer what a file has from an offset on; ``files`` are URL and size."""

        def read(content: bytearray, file: int, offset: int, length: int) -> None:
            url, size = files[file]
            self._fill(content, url, offset, length, size)

        return read

    def _fill(
        self, content: bytearray, url: str, offset: int, length: int, size: int | None
    ) -> None:
        """Add the bytes to ``content``, which was empty; what came before an error stays there."""

        def attempt() -> None:
            self._require_wanted()
            self._request(url, offset, length, size, content)

        self._retrying()(attempt)

    def _retrying(self) -> Retrying:
        patience = self._patience
        usual = wait_random_exponential(patience.first_wait_seconds, _LONGEST_WAIT)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            details = error.details if isinstance(error, NodeUnreachableError) else {}
            return max(usual(state), min(float(details.get("retry_after", 0)), _LONGEST_WAIT))

        return Retrying(
            stop=stop_after_attempt(patience.attempts),
            wait=wait,
            retry=retry_if_exception_type(NodeUnreachableError),
            sleep=self._sleep,
            reraise=True,
        )

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._require_wanted()
            self._aborted.wait(min(left, _LOOK_SECONDS))

    def _request(
        self, url: str, offset: int, length: int, size: int | None, content: bytearray
    ) -> None:
        """Ask for what ``content`` lacks, and add what comes to it, even if that isn't all."""
        start, end = offset + len(content), offset + length
        with self._lock:
            known = self._known.get(url)
        headers = {"Range": f"bytes={start}-{end - 1}", **(known.condition() if known else {})}
        deadline = self._patience.deadline(end - start)
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                there = self._accept(url, response, start, size)
                expected = min(end, there.size) - offset
                with self._abortable(response):
                    for chunk in response.iter_raw():
                        content += chunk
                        self._watch.came(self._peer, len(chunk))
                        if len(content) > expected:
                            raise file_error(shown(url), "range", "more came than was asked for")
                        self._require_time(url, deadline)
        except httpx.HTTPError as error:
            self._require_wanted()
            reason = str(error) or type(error).__name__
            raise NodeUnreachableError(f"{shown(url)}: {reason}") from error
        if len(content) < expected:
            raise NodeUnreachableError(f"{shown(url)}: the answer ended early")

    @contextmanager
    def _abortable(self, response: httpx.Response) -> Iterator[None]:
        with self._lock:
            self._answers.add(response)
        try:
            yield
        finally:
            with self._lock:
                self._answers.discard(response)

    def _require_wanted(self) -> None:
        if self._stop.is_set() or self._aborted.is_set():
            raise CancelledError("fetching was stopped")

    def _require_time(self, url: str, deadline: float) -> None:
        self._require_wanted()
        if time.monotonic() > deadline:
            raise NodeUnreachableError(
                f"{shown(url)}: slower than {self._patience.slowest_bytes} bytes a second"
            )

    def _accept(
        self, url: str, response: httpx.Response, start: int, size: int | None
    ) -> RemoteFile:
        """Check the head of an answer, and that it is of the version that was seen first."""
        if is_private(url) and not is_private(str(response.url)):
            raise file_error(shown(url), "address", "leads on to one that isn't https://")
        _require_found(url, response)
        there = _described(url, response)
        with self._lock:
            known = self._known.get(url)
            if size is not None and there.size != size:
                problem = f"has {there.size} bytes, but should have {size}: it is another file"
                raise file_error(shown(url), "file", problem)
            if known is not None and there.version() != known.version():
                raise _changed(url)
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                raise file_error(
                    shown(url), "range", "the server gives whole files only, not ranges of them"
                )
            self._known.setdefault(url, there)
        if _range_of(response)[0] != start:
            raise file_error(shown(url), "range", "another range came than was asked for")
        return there


def _end_connection(answer: httpx.Response) -> None:
    """Wake up the thread that reads the answer, however long the server is silent."""
    connection = answer.extensions["network_stream"].get_extra_info("socket")
    with suppress(OSError):  # it ended by itself just now
        # Not the method of a TLS socket, which would take its state from under the reader.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _require_found(url: str, response: httpx.Response) -> None:
    """Raise for an answer that isn't one of the file's bytes."""
    status = response.status_code
    if status in {httpx.codes.OK, httpx.codes.PARTIAL_CONTENT}:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise file_error(shown(url), "range", "it came compressed, which wasn't asked for")
        return
    if status in {httpx.codes.PRECONDITION_FAILED, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE}:
        raise _changed(url)
    said = f"{shown(url)}: HTTP {status} {response.reason_phrase}".strip()
    if status in _TRY_AGAIN:
        after = response.headers.get("retry-after", "")
        raise NodeUnreachableError(said, **({"retry_after": after} if after.isdecimal() else {}))
    advice = {401: "; it asks for a key", 403: "; it isn't given to everybody"}.get(status, "")
    raise ModelNotFoundError(f"{said}{advice}; check the address")


def _described(url: str, response: httpx.Response) -> RemoteFile:
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        size = _range_of(response)[2]
    else:
        length = response.headers.get("content-length", "")
        size = int(length) if length.isdecimal() else 0
    linked = [each.headers.get(_LINKED_ETAG) for each in response.history]
    return RemoteFile(
        url,
        size,
        response.headers.get("etag"),
        response.headers.get("last-modified"),
        next((tag for tag in linked if tag), None),
    )


def _range_of(response: httpx.Response) -> tuple[int, int, int]:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None:
        raise file_error(shown(str(response.url)), "range", "the answer doesn't say which it is")
    return int(match[1]), int(match[2]), int(match[3])


def _changed(url: str) -> ModelFileError:
    return file_error(shown(url), "file", "changed on the server meanwhile; try again")
