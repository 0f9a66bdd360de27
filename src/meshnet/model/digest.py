"""What a model is, whatever its file is called and however it is laid out: one digest.

A tree of two levels: the root hashes one line for each key that matters and one for each tensor,
and a tensor's line holds the hash of its data. So the order of keys and tensors and the number of
files don't count, nor does what is only said about the model: ``general.*`` (names, authors,
licences, file type, alignment), ``split.*`` and ``quantize.*`` (how it was quantised).

All other keys count, read by libllama or not: one that a newer version reads must not go unnoticed.
That holds for the tokenizer and its chat template too. They change no number that a node computes
from given tokens, but they decide which tokens a text becomes, and a gateway compares this digest
to know that its own file speaks for the nodes' model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.model.gguf import GgufIndex, TensorInfo
from meshnet.model.progress import Progress, silent
from meshnet.model.weights import WeightFiles

DIGEST_FORMAT: Final = "meshnet model digest 2"
_STATED_FORMAT: Final = "meshnet stated digest 1"

_IRRELEVANT: Final = ("general.", "split.", "quantize.")
_RELEVANT: Final = ("general.architecture", "general.tensor_extra.")


def model_digest(index: GgufIndex, progress: Progress = silent) -> Digest:
    """Hash a whole model: reads every weight, so keep the result.

    Raises :class:`~meshnet.domain.errors.ModelFileError` when a file changes or ends early
    meanwhile.
    """
    return root_digest(index, tensor_digests(index, progress))


def tensor_digests(index: GgufIndex, progress: Progress = silent) -> dict[str, str]:
    """SHA-256 (hexadecimal) of each tensor's data, by name; for errors see :func:`model_digest`."""
    total, done = sum(tensor.size for tensor in index.tensors.values()), 0
    label, digests = f"hash {index.path.name}", {}
    with WeightFiles(index.parts) as weights:
        for tensor in index.tensors.values():
            hashed = hashlib.sha256()
            for chunk in weights.read(tensor):
                hashed.update(chunk)
                done += len(chunk)
                progress(label, done, total)
            digests[tensor.name] = hashed.hexdigest()
        weights.require_unchanged()
    return digests


def root_digest(index: GgufIndex, tensors: Mapping[str, str]) -> Digest:
    """The model's digest, given those of all its tensors' data."""
    lines = (f"{_described(tensor)} {tensors[name]}" for name, tensor in index.tensors.items())
    return _root(DIGEST_FORMAT, (*_key_lines(index), *lines))


def stated_digest(index: GgufIndex, files: Iterable[str]) -> Digest:
    """What stands for the digest of a model whose weights nobody here has hashed.

    ``files`` is what the server says that tells versions of the model's files apart. Equal for all
    who read the same files from it; never equal to :func:`model_digest`'s.
    """
    lines = (*map(_described, index.tensors.values()), *(f"file {file!r}" for file in files))
    return _root(_STATED_FORMAT, (*_key_lines(index), *lines))


def _root(name: str, lines: Iterable[str]) -> Digest:
    root = hashlib.sha256("\n".join((name, *sorted(lines))).encode()).hexdigest()
    return Digest(f"sha256:{root}")


def _key_lines(index: GgufIndex) -> Iterator[str]:
    for key, value in index.metadata.items():
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT):
            yield f"key {key!r} {hashlib.sha256(value.encode()).hexdigest()}"


def _described(tensor: TensorInfo) -> str:
    return f"tensor {tensor.name!r} {tensor.type.name} {'x'.join(map(str, tensor.shape))}"
