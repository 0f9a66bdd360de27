"""What a model's holder says of its files, so that others can check each piece that they fetch.

A manifest needs no trust of its own: the model's digest is a hash over the header's keys and the
tensors' hashes, so header and manifest together prove themselves against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.model.digest import root_digest, tensor_digests
from meshnet.model.gguf import GgufIndex
from meshnet.model.progress import Progress, silent

_VERSION: Final = 1
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[^/\\\0]{1,255}")


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """One of the model's files: its name without a folder, and its bytes in all and of header."""

    name: str
    size: int
    header_bytes: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in {".", ".."}:
            raise InvalidArgumentError("manifest.parts.name", f"{self.name!r} is no file's name")
        if not 0 < self.header_bytes <= self.size:
            raise InvalidArgumentError(
                "manifest.parts.header_bytes",
                f"is {self.header_bytes}, but must be 1 to the file's {self.size} bytes",
            )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model's digest, its files in order, and the SHA-256 (hexadecimal) of each tensor's data."""

    digest: Digest
    parts: tuple[ManifestPart, ...]
    tensors: Mapping[str, str]

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise InvalidArgumentError("manifest.digest", f"{self.digest!r} is no SHA-256 digest")
        if not self.parts:
            raise InvalidArgumentError("manifest.parts", "there must be at least one")
        for name, digest in self.tensors.items():
            if not _HASH.fullmatch(digest):
                raise InvalidArgumentError("manifest.tensors", f"that of {name!r} is no SHA-256")

    def require_of(self, index: GgufIndex) -> None:
        """Raise :class:`~meshnet.domain.errors.ModelFileError` unless it speaks of this model."""
        if self.tensors.keys() != index.tensors.keys():
            raise index.error("manifest", "names other tensors than the model's header does")
        if root_digest(index, self.tensors) != self.digest:
            raise index.error("manifest", f"header and tensors' hashes don't give {self.digest}")

    def to_json(self) -> bytes:
        """The form in which it is kept and sent."""
        parts = [[part.name, part.size, part.header_bytes] for part in self.parts]
        document = {
            "version": _VERSION,
            "digest": self.digest,
            "parts": parts,
            "tensors": dict(self.tensors),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @staticmethod
    def from_json(data: bytes) -> Manifest:
        """Read what :meth:`to_json` wrote; raises :class:`InvalidArgumentError` for all else."""
        try:
            document = json.loads(data)
            version, digest = document["version"], document["digest"]
            parts = [(name, size, header) for name, size, header in document["parts"]]
            tensors = dict(document["tensors"].items())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidArgumentError("manifest", "isn't one") from error
        if version != _VERSION:
            raise InvalidArgumentError("manifest.version", f"is {version!r}, not {_VERSION}")
        texts = [digest, *tensors.values(), *(name for name, _, _ in parts)]
        numbers = [number for _, *sizes in parts for number in sizes]
        if not all(isinstance(text, str) for text in texts) or any(
            isinstance(number, bool) or not isinstance(number, int) for number in numbers
        ):
            raise InvalidArgumentError("manifest", "holds values of other types than it should")
        return Manifest(digest, tuple(ManifestPart(*part) for part in parts), tensors)


def make_manifest(index: GgufIndex, progress: Progress = silent) -> Manifest:
    """Hash a whole model: reads every weight, so keep the result.

    Raises :class:`~meshnet.domain.errors.ModelFileError` when a file changes or ends early
    meanwhile.
    """
    tensors = tensor_digests(index, progress)
    parts = (ManifestPart(part.path.name, part.size, part.header_bytes) for part in index.parts)
    return Manifest(root_digest(index, tensors), tuple(parts), tensors)
