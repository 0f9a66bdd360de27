"""Write ``docs/architectures.md`` from what the zoo of random models found.

Usage: python scripts/generate_architectures_doc.py [--check]
With --check nothing is written: a document that differs is reported and the exit code is 1.

The findings are in ``tests/support/zoo/findings.json``, which
``python -m tests.support.zoo --findings`` makes anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.zoo.report import DOCUMENT, document, load


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if it differs")
    text = document(load())
    if not parser.parse_args().check:
        DOCUMENT.write_text(text)
        return 0
    if DOCUMENT.is_file() and DOCUMENT.read_text() == text:
        return 0
    print(f"{DOCUMENT} differs from the findings; run this script without --check")
    return 1


if __name__ == "__main__":
    sys.exit(main())
