"""`GET /metrics`: plain counters as JSON, or as Prometheus or OpenMetrics text.

prometheus-client writes the text; nothing is registered with it. The collector reads what the parts
of the broker have counted at the moment somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as PrometheusFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast.frontends.http import schema
from holdfast.frontends.http.accept import prefers
from holdfast.frontends.http.exchange import JSON_TYPE, NO_STORE, Request, Response, json_response
from holdfast.frontends.http.measures import measured
from holdfast.frontends.http.params import OptionalTextParam, shown
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadValue
from holdfast.model.metrics import Metric, MetricsSource
from holdfast.model.spill import FileBuffer

TEXT_TYPE: Final = "text/plain"
OPENMETRICS_TYPE: Final = "application/openmetrics-text"
FORMAT: Final = OptionalTextParam(name="format", doc="json or prometheus, whatever `Accept` says", example="prometheus")
_FORMATS: Final = {None: "", "json": JSON_TYPE, "prometheus": TEXT_TYPE}


async def metrics(services: Services, request: Request) -> Response:
    named = FORMAT.of(request.query)
    if named not in _FORMATS:
        raise BadValue(f"format must be json or prometheus, not {shown(named or '')}")
    accept = _FORMATS[named] or request.header(b"accept")
    wanted = prefers(accept, (JSON_TYPE, OPENMETRICS_TYPE, TEXT_TYPE))
    if wanted == JSON_TYPE:
        return json_response(schema.Metrics(_file_buffer(services), families(measured(services))))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(lambda: measured(services)))
    # Of what the client lists, only the format that it ranks highest is left to choose a version of.
    encode, content_type = choose_encoder(_ranges_of(accept, wanted))
    return Response(200, [(b"content-type", content_type.encode()), NO_STORE], encode(registry))


def _file_buffer(services: Services) -> FileBuffer:
    """What is kept while the store is away; a broker that keeps nothing has nothing."""
    if services.file_buffer is not None:
        return services.file_buffer()
    return FileBuffer(pending=0, flushed=0, failed=0, db_healthy=services.broker.backend.problem() is None)


def families(measured: Sequence[Metric]) -> list[schema.MetricFamily]:
    """Values of one name together, in the order in which the names first came."""
    found: dict[str, schema.MetricFamily] = {}
    for metric in measured:
        family = found.get(metric.name)
        if family is None:
            family = found[metric.name] = schema.MetricFamily(metric.name, metric.type, metric.help, [])
        family.samples.append(schema.MetricSample(dict(metric.labels), metric.value))
    return list(found.values())


class _Snapshot(Collector):
    """What prometheus-client reads: everything, as it is now."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterable[PrometheusFamily]:
        for family in families(self._source()):
            names = sorted({name for sample in family.samples for name in sample.labels})
            kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
            written = kind(family.name, family.help, labels=names)
            for sample in family.samples:
                written.add_metric([sample.labels.get(name, "") for name in names], sample.value)
            yield written


def _ranges_of(accept: str, media_type: str) -> str:
    return ",".join(part for part in accept.split(",") if part.split(";")[0].strip().lower() == media_type)
