"""Where a model's files, or a slice of it, can be read from by range."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import misnamed, sibling_name
from meshnet.model.gguf_cursor import file_error

HUB: Final = "https://huggingface.co"
"""Where ``hf://`` addresses lead; files lie at ``/<org>/<repo>/resolve/main/<file>`` there."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Source:
    """A holder of a model, or of one slice of it, that answers HTTP range requests."""

    urls: tuple[str, ...]
    """Of the model's files in order, or of any one of several that are named by the rule for parts;
    of a slice: of its one file."""
    layers: LayerRange | None = None
    """The layers of the slice; None for the whole model."""
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    """How to speak to nodes of the cluster; None for public servers."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request."""
    peer: str = ""
    """What a machine is called that only passes on what it fetched itself; empty for any other.
    Such ones are asked before the others, and share the work."""
    patience: Patience | None = None
    """With this one; None: as with all."""

    def __post_init__(self) -> None:
        if not self.urls or (self.layers is not None and len(self.urls) != 1):
            raise InvalidArgumentError("source.urls", "give one URL, or one for each of the parts")
        for url in self.urls:
            _checked(url)

    @property
    def name(self) -> str:
        """What errors call it."""
        return shown(self.urls[0])

    def part_urls(self, count: int) -> tuple[str, ...]:
        """The URLs of a model's ``count`` files, in order.

        Raises :class:`~meshnet.domain.errors.ModelFileError` when there aren't so many.
        """
        if len(self.urls) == count:
            return self.urls
        name = unquote(urlsplit(self.urls[0]).path).rpartition("/")[2]
        names = [sibling_name(name, number, count) for number in range(count)]
        if len(self.urls) > 1 or None in names:
            raise file_error(self.name, "split.count", misnamed(count))
        return tuple(_sibling_url(self.urls[0], each) for each in names if each is not None)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for, and how much is asked of it at once."""

    attempts: int = 5
    first_wait_seconds: float = 0.25
    """Before the second attempt at most, by chance; the most doubles with each further one."""
    connect_seconds: float = 10.0
    stall_seconds: float = 20.0
    """Between two pieces of an answer."""
    slowest_bytes: int = 32 << 10
    """A second, below which an answer is given up."""
    parallel: int = 4
    """Requests at once."""
    piece_bytes: int = 8 << 20
    """Asked for in one request at most."""

    def deadline(self, length: int) -> float:
        """When an answer of ``length`` bytes must have come, on the monotonic clock."""
        return time.monotonic() + self.stall_seconds + length / self.slowest_bytes


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One version of a file on a server."""

    url: str
    size: int
    etag: str | None = None
    """As the server writes it."""
    modified: str | None = None
    linked: str | None = None
    """The tag that stays the same wherever the server sends its readers on to."""
    own_name: str = ""
    """What the file is called on this machine."""

    @property
    def tag(self) -> str:
        """What the server calls this version; empty where it says nothing."""
        return (self.linked or self.etag or self.modified or "").removeprefix("W/")

    def version(self) -> str:
        """What tells this version from others, as far as the server says."""
        return f"{self.tag} {self.size}"

    def condition(self) -> dict[str, str]:
        """The header by which a server refuses to give pieces of another version."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return {"If-Range": self.etag}
        return {}


def source_of(address: str, hub: str = HUB, token: str | None = None) -> Source:
    """The source that an address means: ``https://...`` or ``hf://<org>/<repo>/<file>.gguf``.

    Of a model in several parts it may name any. ``token`` is shown to the hub alone. Raises
    :class:`InvalidArgumentError`, saying what is wrong, for any other address.
    """
    if not address.startswith("hf://"):
        return Source((address,))
    org, _, rest = address.removeprefix("hf://").partition("/")
    repo, _, file = rest.partition("/")
    if not org or not repo or not file.endswith(".gguf"):
        raise InvalidArgumentError(
            "model", f"{address!r} isn't of the form hf://ORG/REPOSITORY/FILE.gguf"
        )
    path = "/".join(quote(piece, safe="/") for piece in (org, repo, "resolve/main", file))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Source((f"{hub.rstrip('/')}/{path}",), headers=headers)


def is_address(argument: str) -> bool:
    """Whether a model's name is an address rather than a path."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", argument) is not None


def file_name(url: str) -> str:
    """A name for the file at ``url`` that is safe on this machine."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return _UNSAFE.sub("_", name).lstrip(".")[-200:] or "model.gguf"


def _sibling_url(url: str, name: str) -> str:
    """The URL of the file ``name`` beside the one at ``url``."""
    parts = urlsplit(url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{folder}/{quote(name)}"))


def shown(url: str) -> str:
    """The URL without what may be a secret."""
    parts = urlsplit(url)
    return urlunsplit(
        SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def is_private(url: str) -> bool:
    """Whether nobody on the way can read or change what is read from ``url``."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in _LOOPBACK


def _checked(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgumentError("model", f"{shown(url)!r} is no URL: {error}") from error
    if parts.scheme not in {"https", "http"}:
        raise InvalidArgumentError(
            "model", f"{parts.scheme}:// isn't read; give an https:// or hf:// address, or a path"
        )
    if not host or not parts.path.strip("/"):
        raise InvalidArgumentError("model", f"{shown(url)!r} names no file")
    if not is_private(url):
        raise InvalidArgumentError(
            "model", f"{shown(url)!r}: anybody on the way could change the model; use https://"
        )
