"""Samples in the formats that Prometheus scrapes, and a small server of nothing but them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from meshnet.domain.metrics import Distribution, Metric, MetricKind, Sample
from meshnet.gateway.access import Access
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.door import Door

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Collect = Callable[[], Awaitable[list[Sample]]]
"""Reads all samples now; raises nothing, since what can't be read is a sample too."""


def render(samples: Iterable[Sample], accept: str) -> tuple[bytes, str]:
    """The body and the content type that suit an ``Accept`` header, by prometheus-client."""
    # Not needed by those who never ask for metrics, and slow to import.
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(list(_families(samples))))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


async def metrics_response(request: Request, collect: Collect) -> Response:
    """Answer one scrape."""
    body, content_type = render(await collect(), request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


def metrics_app(collect: Collect, host: str) -> FastAPI:
    """An application that offers ``/metrics`` alone, for a node that serves no other HTTP.

    It reads figures and changes nothing, so that it needs no key; for ``host`` see
    :class:`GatewayConfig`.
    """
    app = FastAPI(title="Meshnet metrics", openapi_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    app.add_middleware(Door, config=GatewayConfig(host=host, open_access=True), access=Access())

    async def metrics(request: Request) -> Response:
        return await metrics_response(request, collect)

    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    return app


class _Fixed:
    """A collector of families that are there already."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def _families(samples: Iterable[Sample]) -> Iterator[Family]:
    """One family a metric, in the order of their first samples."""
    grouped: dict[Metric, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.metric, []).append(sample)
    for metric, members in grouped.items():
        yield _family(metric, members)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for sample in samples:
            if isinstance(sample.value, Distribution):
                histogram.add_metric(sample.labels, _buckets(sample.value), sample.value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for sample in samples:
        if not isinstance(sample.value, Distribution):
            family.add_metric(sample.labels, sample.value)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    names = [*(format(bound, "g") for bound in distribution.bounds), "+Inf"]
    return list(zip(names, distribution.cumulative(), strict=True))
