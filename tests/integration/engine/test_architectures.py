"""Every architecture of the table is cut exactly, and every other one is refused."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshnet.model.architectures import REFUSED, VERIFIED
from tests.support.zoo import report, results
from tests.support.zoo.results import Result
from tests.support.zoo.table import MODELS
from tests.support.zoo.variants import first_of_each
from tests.support.zoo.without_rules import UNNOTICED

QUICK_SECONDS = 400
FULL_SECONDS = 3000


def run_zoo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since it forks, and this one has threads."""
    command = [sys.executable, "-m", "tests.support.zoo", *arguments]
    return subprocess.run(
        command, cwd=report.ROOT, capture_output=True, text=True, timeout=FULL_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Result]:
    out = tmp_path_factory.mktemp("zoo") / "results.json"
    ran = run_zoo("--quick", "--out", str(out))
    assert out.is_file(), ran.stderr
    return {result.architecture: result for result in results.load(out)}


@pytest.mark.timeout(QUICK_SECONDS)
@pytest.mark.parametrize("name", [model.architecture for model in first_of_each()])
def test_the_plainest_model_is_cut_exactly_or_refused_as_the_table_says(
    name: str, quick: Mapping[str, Result]
) -> None:
    result = quick[name]
    assert (result.outcome, name in VERIFIED) in {("exact", True), ("refused", False)}, result
    assert result.cuts >= 1 or name in REFUSED


def test_the_zoo_has_every_architecture_of_the_table():
    assert {model.architecture for model in MODELS} >= set(VERIFIED)


def test_models_have_names_of_their_own():
    names = [model.name for model in MODELS]
    assert len(names) == len(set(names))


def test_the_document_says_what_was_found():
    assert report.DOCUMENT.read_text() == report.document(report.load())


def test_what_was_found_is_about_the_tables_architectures():
    rows = {row.architecture: row.outcome for row in report.load().rows}
    exact = {name for name, outcome in rows.items() if outcome == "exact"}
    assert exact == set(VERIFIED)
    assert {name for name in rows if name not in exact} <= set(REFUSED)
    assert len(exact) >= 100


def test_no_slice_without_a_rule_went_unnoticed():
    for row in report.load().weak:
        assert not set(row.notices) & UNNOTICED, row
        assert set(row.notices) - {"same", "exact"}, f"nothing notices that {row.rule} is off"


@pytest.mark.slow
@pytest.mark.timeout(FULL_SECONDS)
def test_every_model_and_every_rule_as_the_committed_findings_say(tmp_path: Path) -> None:
    out = tmp_path / "findings.json"
    ran = run_zoo("--findings", str(out))
    assert ran.returncode == 0, ran.stdout
    assert json.loads(out.read_text()) == json.loads(report.FINDINGS.read_text())
