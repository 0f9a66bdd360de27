"""What a model is, whatever its file is called and however it is laid out: one digest.

A tree of two levels: the root hashes one line for each key that matters and one for each tensor,
and a tensor's line holds the hash of its data. So the order of the tensors and the number of files
don't count, nor do names, authors, licences and other texts about the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.model.gguf import GgufIndex
from meshnet.model.progress import Progress, silent
from meshnet.model.weights import WeightFiles

DIGEST_FORMAT: Final = "meshnet model digest 1"

_IRRELEVANT: Final = ("general.", "split.")
_RELEVANT: Final = ("general.architecture", "general.tensor_extra.")


def model_digest(index: GgufIndex, progress: Progress = silent) -> Digest:
    """Hash a whole model: reads every weight, so keep the result.

    Raises :class:`~meshnet.domain.errors.ModelFileError` when a file changes or ends early
    meanwhile.
    """
    lines = [DIGEST_FORMAT, *sorted((*_key_lines(index), *_tensor_lines(index, progress)))]
    root = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Digest(f"sha256:{root}")


def _key_lines(index: GgufIndex) -> Iterator[str]:
    for key, value in index.metadata.items():
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT):
            yield f"key {key!r} {hashlib.sha256(value.encode()).hexdigest()}"


def _tensor_lines(index: GgufIndex, progress: Progress) -> Iterator[str]:
    total, done = sum(tensor.size for tensor in index.tensors.values()), 0
    label = f"hash {index.path.name}"
    with WeightFiles(index.parts) as weights:
        for tensor in index.tensors.values():
            hashed = hashlib.sha256()
            for chunk in weights.read(tensor):
                hashed.update(chunk)
                done += len(chunk)
                progress(label, done, total)
            shape = "x".join(map(str, tensor.shape))
            yield f"tensor {tensor.name!r} {tensor.type.name} {shape} {hashed.hexdigest()}"
        weights.require_unchanged()
