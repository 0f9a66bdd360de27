"""Play the zoo's models, each in a process of its own, and say what came of each.

``python -m tests.support.zoo [--quick] [--jobs N] [--out FILE] [--findings FILE] [NAME...]``
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from meshnet.engine.llamacpp.library import llama_ready
from tests.support.zoo.jobs import Died, run_jobs
from tests.support.zoo.parity import compare
from tests.support.zoo.report import Findings, rows_of, save, weak_rows_of
from tests.support.zoo.results import Result, dump
from tests.support.zoo.spec import ZooModel
from tests.support.zoo.variants import every_variant, first_of_each
from tests.support.zoo.without_rules import WeakResult, pairs, without


def main() -> int:
    """Run what the arguments ask for; 1 if anything isn't as it should be."""
    wanted = _arguments()
    # ggml would start a debugger to print a stack at each of the many aborts.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    llama_ready()
    started = time.monotonic()
    models = first_of_each() if wanted.quick else every_variant()
    results = play([model for model in models if _named(model, wanted.names)], wanted)
    if wanted.out:
        dump(results, wanted.out)
    weak: list[WeakResult] = []
    if wanted.findings:
        chosen = [pair for pair in pairs() if _named(pair[0], wanted.names)]
        weak = play_without_rules(chosen, wanted.jobs)
        save(Findings(rows_of(results), weak_rows_of(weak)), wanted.findings)
    _say(f"{len(results)} models, {len(weak)} without a rule, {time.monotonic() - started:.0f} s")
    bad = [result for result in results if result.outcome not in {"exact", "refused"}]
    return int(bool(bad) or any(result.unnoticed for result in weak))


def play(models: Sequence[ZooModel], wanted: argparse.Namespace) -> list[Result]:
    """Compare the models' cuts with the whole."""
    results = []
    for model, outcome in run_jobs(
        models,
        lambda model, folder: asdict(compare(model, folder, quick=wanted.quick)),
        wanted.jobs,
    ):
        result = _record(model, outcome)
        results.append(result)
        _say(f"{result.name}: {result.outcome} {result.cuts} {result.detail}")
    return results


def play_without_rules(chosen: Sequence[tuple[ZooModel, str]], at_once: int) -> list[WeakResult]:
    """Make slices without one rule, and see who notices."""
    results = []
    for (model, rule), outcome in run_jobs(
        chosen, lambda pair, folder: asdict(without(*pair, folder)), at_once
    ):
        if isinstance(outcome, Died):
            result = WeakResult(model.architecture, model.label, rule, {"late": 1}, outcome.reason)
        else:
            result = WeakResult(**outcome)  # type: ignore[arg-type]
        results.append(result)
        _say(f"{model.name} without {rule}: {result.notices} {result.detail}")
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one model an architecture, two cuts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once")
    parser.add_argument("--out", type=Path, help="where to write each model's record")
    parser.add_argument(
        "--findings", type=Path, help="switch rules off as well, and write what the document says"
    )
    parser.add_argument("names", nargs="*", help="parts of models' names; all without")
    return parser.parse_args()


def _named(model: ZooModel, names: Sequence[str]) -> bool:
    return not names or any(name in f"{model.name}/{model.quantization.name}" for name in names)


def _record(model: ZooModel, outcome: object) -> Result:
    if isinstance(outcome, Died):
        return Result(
            model.architecture,
            model.label,
            model.quantization.name,
            model.layers,
            "died" if outcome.by_signal else "failed",
            outcome.reason,
        )
    return Result(**outcome)  # type: ignore[arg-type]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
