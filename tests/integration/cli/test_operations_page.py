"""The page for operators tells of every metric as it is, and of no other."""

from pathlib import Path

import pytest

from meshnet.domain.metrics import Metric
from meshnet.gateway.metrics import GATEWAY_METRICS
from meshnet.node.metrics import NODE_METRICS

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |"


@pytest.mark.parametrize(
    ("prefix", "metrics"),
    [("meshnet_node_", NODE_METRICS), ("meshnet_gateway_", GATEWAY_METRICS)],
    ids=["node", "gateway"],
)
def test_the_table_of_metrics_is_the_registry(prefix, metrics):
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.startswith(f"| `{prefix}")]
    wanted = [row(metric) for metric in metrics]
    assert found == wanted, "write this into docs/operations.md:\n" + "\n".join(wanted)


@pytest.mark.parametrize("metrics", [NODE_METRICS, GATEWAY_METRICS], ids=["node", "gateway"])
def test_names_are_unique(metrics):
    assert len({metric.name for metric in metrics}) == len(metrics)
