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
from collections.abc import Iterator
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.model.gguf import GgufIndex
from meshnet.model.progress import Progress, silent
from meshnet.model.weights import WeightFiles

DIGEST_FORMAT: Final = "meshnet model digest 2"

_IRRELEVANT: Final = ("general.", "split.", "quantize.")
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
