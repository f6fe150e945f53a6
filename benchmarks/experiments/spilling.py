"""How fast a spill takes messages while the database is away, and how fast it gives them back.

    python -m benchmarks.experiments.spilling --messages 1000000

Everything is in one process but for the PostgreSQL, which is the embedded one, with its syncs on. Pushers hand over
requests of 1,000 messages of 190 bytes, each as soon as the one before is acknowledged: plain values, or with `--ids`
pushes to ten partitions with a transaction id each, a new UUID of version 7. `--live` pushes the same, 100 at a time,
to another topic while the spill is emptied.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
import uuid_utils

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.broker import Broker
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.push_ids import push_ids
from holdfast.model.topics import TopicConfig
from holdfast.wire.push_batch import Pushed

_PARTITIONS = 10
_TOGETHER = 1_000


def _now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


def _values(number: int, *, as_json: bool) -> list[bytes]:
    if not as_json:
        return [b"%012d " % (number + place) + b"x" * 177 for place in range(_TOGETHER)]
    return [b'{"id":"%012d","text":"%s"}' % (number + place, b"x" * 159) for place in range(_TOGETHER)]


def _publish(broker: Broker, topic: str, values: list[bytes], *, has_ids: bool) -> asyncio.Future[Any]:
    if not has_ids:
        return broker.publish_values(topic, values).offset
    names = [f"p{place % _PARTITIONS}" for place in range(len(values))]
    transaction_ids = [str(uuid_utils.uuid7()) for _ in values]
    ids = push_ids(names, transaction_ids)
    return broker.publish_pushed(topic, Pushed(names, values, ids, transaction_ids, [None] * len(values)))


async def _push(
    broker: Broker, count: int, pushers: int, *, topic: str, as_json: bool, has_ids: bool
) -> tuple[float, list[float]]:
    took_ms: list[float] = []
    left = count // _TOGETHER
    values = _values(0, as_json=as_json)
    assert {len(value) for value in values} == {190}

    async def push_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began_s = time.perf_counter()
            await _publish(broker, topic, values, has_ids=has_ids)
            took_ms.append((time.perf_counter() - began_s) * 1000)

    began_s = time.perf_counter()
    await asyncio.gather(*(push_on() for _ in range(pushers)))
    return count / (time.perf_counter() - began_s), took_ms


async def _run(messages: int, pushers: int, *, as_json: bool, live: bool, has_ids: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-spilling-") as text:
        path = Path(text)
        server = EmbeddedServer(path / "postgres")
        url = await server.start()
        database = PostgresBackend(url, node="n1", now_ms=_now_ms, timeout_s=5, retry_s_max=0.1)
        await database.start()
        spill = SpillBackend(database, database.replaying, SpillSettings(path / "spill"), now_ms=_now_ms)
        await spill.start()
        broker = Broker(spill, now_ms=_now_ms)
        broker.spill_with(spill.push_losable, spill.keep_pushed)
        for topic in ("t", "live"):
            await spill.create_topic(TopicName(topic), TopicConfig(partitions=_PARTITIONS))
        normal, took_ms = await _push(broker, messages // 5, pushers, topic="t", as_json=as_json, has_ids=has_ids)
        print(f"database there:  {normal:>9,.0f} messages/s, p99 {_p99(took_ms):.1f} ms")
        await server.stop()
        rate, took_ms = await _push(broker, messages, pushers, topic="t", as_json=as_json, has_ids=has_ids)
        disk = spill._appender
        print(
            f"database away:   {rate:>9,.0f} messages/s, p50 {statistics.median(took_ms):.1f} ms, "
            f"p99 {_p99(took_ms):.1f} ms, {disk.rounds} rounds of {disk.seconds / disk.rounds * 1000:.1f} ms"
        )
        pending = spill.pending
        await server.start()
        while not spill.stats.replayed_events:
            await asyncio.sleep(0.005)
        began_s, replayed = time.perf_counter(), spill.stats.replayed_events
        is_over = False
        counted = 0

        async def push_live() -> None:
            nonlocal counted
            values = _values(0, as_json=as_json)[:100]
            while not is_over:
                await _publish(broker, "live", values, has_ids=has_ids)
                counted += len(values)

        pushing = [asyncio.create_task(push_live()) for _ in range(4 if live else 0)]
        while spill.stats.replayed_events < pending:
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began_s
        is_over = True
        await asyncio.gather(*pushing)
        print(f"stored again:    {(pending - replayed) / seconds:>9,.0f} messages/s", end="")
        print(f", beside {counted / seconds:,.0f} live messages/s" if live else "")
        stored = await database.database.fetch("SELECT count(*) FROM holdfast.queue_messages WHERE queue = 't'")
        assert stored[0][0] == messages // 5 // _TOGETHER * _TOGETHER + messages // _TOGETHER * _TOGETHER, stored
        await spill.stop()
        await database.stop()
        await server.stop()


def _p99(took_ms: list[float]) -> float:
    return sorted(took_ms)[int(0.99 * (len(took_ms) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--pushers", type=int, default=10)
    parser.add_argument("--text", action="store_true", help="values that are no JSON")
    parser.add_argument("--ids", action="store_true", help="pushes with a transaction id each")
    parser.add_argument("--live", action="store_true", help="publish to other partitions while it is stored again")
    parser.add_argument("--loud", action="store_true")
    given = parser.parse_args()
    if not given.loud:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(_run(given.messages, given.pushers, as_json=not given.text, live=given.live, has_ids=given.ids))


if __name__ == "__main__":
    main()
