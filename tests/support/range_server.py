"""A file server on the loopback that answers range requests, counts bytes, and can misbehave."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Behaviour:
    """How the server answers; tests change it while it runs."""

    ranges: bool = True
    """Whether it heeds Range; else it answers with the whole file."""
    tags: bool = True
    """Whether it says which version of a file it gives."""
    version: int = 1
    breaks: list[int] = field(default_factory=list)
    """After how many bytes of a body the next answers break off, one answer each."""
    refusals: list[int] = field(default_factory=list)
    """Statuses of the next answers, one each."""
    damage: Callable[[int, bytes], bytes] = lambda start, content: content
    """What becomes of a body that starts at a byte of the file."""
    stalls: threading.Event | None = None
    """Waited for in the middle of a body of more than a byte."""
    redirect: str | None = None
    """Where readers are sent on to: a prefix of the path they asked for."""


@dataclass
class RangeServer:
    """A running server; ``folder`` is what it serves."""

    folder: Path
    port: int
    behaviour: Behaviour = field(default_factory=Behaviour)
    sent: int = 0
    """Bytes of bodies."""
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, first byte and end of each."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def count(self, sent: int) -> None:
        with self.lock:
            self.sent += sent


@contextmanager
def range_server(folder: Path) -> Iterator[RangeServer]:
    """Serve the folder at any path that ends in a file's name, until the block is left."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        http.daemon_threads = True
        server = RangeServer(folder, http.server_address[1])
        http.files = server  # type: ignore[attr-defined]
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return

    def do_GET(self) -> None:
        server: RangeServer = self.server.files  # type: ignore[attr-defined]
        how = server.behaviour
        if how.refusals:
            self.send_response(how.refusals.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if how.redirect is not None and not self.path.startswith("/store/"):
            self.send_response(302)
            self.send_header("Location", f"{how.redirect}{self.path}?signature=secret")
            self.send_header("X-Linked-ETag", f'"linked-{how.version}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = server.folder / unquote(urlsplit(self.path).path).rpartition("/")[2]
        if not path.exists():
            self.send_error(404)
            return
        self._answer(server, path)

    def _answer(self, server: RangeServer, path: Path) -> None:
        how = server.behaviour
        size, tag = path.stat().st_size, f'"version-{how.version}"'
        match = RANGE.fullmatch(self.headers.get("Range", ""))
        same = self.headers.get("If-Range", tag) == tag
        start, end = 0, size
        if match and how.ranges and same:
            start, end = int(match[1]), min(int(match[2]) + 1, size)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        else:
            self.send_response(200)
        if how.tags:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        with server.lock:
            server.requests.append((path.name, start, end))
            left = how.breaks.pop(0) if how.breaks else None
        with path.open("rb") as file:
            file.seek(start)
            self._send(server, how.damage(start, file.read(end - start)), left)

    def _send(self, server: RangeServer, content: bytes, left: int | None) -> None:
        if left is not None:
            content = content[:left]
            self.close_connection = True
        if (stalls := server.behaviour.stalls) is not None and len(content) > 1:
            half = len(content) // 2
            self._put(server, content[:half])
            stalls.wait(10)
            content = content[half:]
        self._put(server, content)

    def _put(self, server: RangeServer, content: bytes) -> None:
        try:
            for start in range(0, len(content), 65536):
                piece = content[start : start + 65536]
                self.wfile.write(piece)
                server.count(len(piece))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
