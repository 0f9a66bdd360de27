"""The zoo's table: for each architecture its models, each with what is special about it.

Names and meanings of the keys are llama.cpp's (``src/llama-arch.cpp``, and ``load_arch_hparams`` of
each file in ``src/models``). Windows are shorter than the played text and kinds of layers alternate
as in real models, so that a slice which lacks a kind or miscounts a period shows.
"""

from __future__ import annotations

from typing import Final

from tests.support.zoo.table_alike import plain, positions, sparse
from tests.support.zoo.table_mixed import recurrent, windows

MODELS: Final = (*plain(), *sparse(), *positions(), *windows(), *recurrent())
"""Every model, an architecture's plainest first."""
