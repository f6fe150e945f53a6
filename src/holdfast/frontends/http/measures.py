"""What this front end can measure: the broker's counters, its topics and cursors, and its own doings.

Counters are kept as plain numbers by whoever counts; here they get the names that docs/metrics.md
explains. Everything is read at the moment somebody asks, so a broker that nobody asks pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.broker.broker import Broker
from holdfast.broker.stats import BrokerStats
from holdfast.frontends.http.services import Services
from holdfast.model.metrics import SERIES_MAX, Metric


def measured(services: Services) -> list[Metric]:
    """Everything, with what the node adds."""
    return [
        *_of_broker(services.broker.stats),
        *_of_topics(services.broker),
        *_of_cursors(services.broker),
        *_of_http(services),
        *services.metrics_source(),
    ]


def _counter(name: str, text: str, value: float, **labels: str) -> Metric:
    return Metric(name=f"holdfast_{name}_total", help=text, type="counter", value=value, labels=labels)


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    return Metric(name=f"holdfast_{name}", help=text, type="gauge", value=value, labels=labels)


def _of_broker(stats: BrokerStats) -> Iterator[Metric]:
    yield _counter(
        "published_messages", "Messages stored, without those that were there before.", stats.published_messages
    )
    yield _counter("published_bytes", "Bytes of the batches they were stored in.", stats.published_bytes)
    yield _counter("published_batches", "Batches they were stored in.", stats.published_batches)
    yield _counter("duplicates", "Messages that were recognised by their id and not stored again.", stats.duplicates)
    yield _counter("delivered_messages", "Messages given to readers and subscribers.", stats.delivered_messages)
    yield _counter("delivered_bytes", "Bytes given to readers and subscribers.", stats.delivered_bytes)
    yield _counter("skipped_damaged", "Damaged messages that readers were taken past.", stats.skipped_damaged)
    yield _counter("skipped_expired", "Messages that expired before a reader came to them.", stats.skipped_expired)
    yield _gauge("subscriptions", "Live and durable subscriptions that are connected.", stats.subscriptions)
    for code, count in sorted(stats.errors.items()):
        yield _counter("errors", "Requests and commands refused or failed, by error code.", count, code=code)


def _of_topics(broker: Broker) -> Iterator[Metric]:
    topics = broker.topics()
    yield _gauge("topics", "Topics there are.", len(topics))
    for one in topics[:SERIES_MAX]:
        damaged = sum(partition.damaged_batches for partition in one.partitions)
        yield _gauge("topic_messages", "Messages in a topic.", one.messages, topic=one.topic)
        yield _gauge("topic_bytes", "Bytes a topic takes on disk.", one.size_bytes, topic=one.topic)
        yield _gauge("topic_damaged_batches", "Batches of a topic that fail their checksum.", damaged, topic=one.topic)


def _of_cursors(broker: Broker) -> Iterator[Metric]:
    cursors = broker.cursors()
    yield _gauge("cursors", "Cursors there are.", len(cursors))
    for one in cursors[:SERIES_MAX]:
        yield _gauge(
            "cursor_lag_messages", "Messages a cursor has before it.", one.lag, topic=one.topic, cursor=one.name
        )


def _of_http(services: Services) -> Iterator[Metric]:
    for (operation, status), count in sorted(services.answers.items()):
        text = "HTTP requests answered, by operation and status."
        yield _counter("http_requests", text, count, operation=operation, status=str(status))
    yield _gauge("http_connections", "Open HTTP connections.", services.connections())
    yield _counter(
        "http_refused_connections",
        "HTTP connections refused because too many were open.",
        services.refused_connections(),
    )
    yield _gauge("http_tails", "Event streams that are being sent.", services.tails)
    yield _gauge("http_body_bytes", "Bytes of request bodies held in memory.", services.budget.bytes_used)
