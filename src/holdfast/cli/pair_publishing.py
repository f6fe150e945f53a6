"""`holdfast publish … ADDRESS [ADDRESS]`: messages to a pair, or to one plain broker, over the text protocol.

The source is read and paced here, in the command's own thread; the publisher works on a loop of its own, so that
messages leave when they are due, whether those before are acknowledged or not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output, pacing
from holdfast.cli.publishing import Stopped
from holdfast.cli.quantities import plural
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Counts, PairPublished, PairPublisher
    from holdfast.client.loop_thread import LoopThread
    from holdfast.client.records import Begun, SentRecords

# Lists that are under way at a time. At a steady rate a list is a message: many, for a pair that takes its time. A
# flood comes in lists of thousands: one to work on and one behind it.
_PACED_LISTS_MAX: Final = 10_000
_FLOOD_LISTS_MAX: Final = 2
# Longer lists of due messages are cut.
_TOGETHER_MAX: Final = 1000


class PairPublishing:
    """Publishes lists of values, many under way at a time, and says what became of them."""

    def __init__(
        self,
        thread: LoopThread,
        publisher: PairPublisher,
        topic: str,
        *,
        message_id: str | None,
        records: SentRecords | None,
        as_json: bool,
    ) -> None:
        self._thread = thread
        self._publisher = publisher
        self._topic = topic
        self._id = message_id
        self._records = records
        self._as_json = as_json
        self._under_way: deque[tuple[list[bytes], Begun | None, Future[list[PairPublished]]]] = deque()

    def at_a_rate(self, source: Iterator[list[bytes]], rate: float, for_s: float | None) -> None:
        """A line for each message, in their order, once it is acknowledged."""
        for due in pacing.paced(source, rate, for_s, _TOGETHER_MAX):
            self._begin(due)
            self._finish(_PACED_LISTS_MAX, show=True)
        self._finish(0, show=True)

    def at_once(self, source: Iterator[list[bytes]], for_s: float | None, *, show: bool) -> None:
        """As fast as the broker takes them."""
        started = time.monotonic()
        with output.counter("messages") as counter:
            task = counter.add_task(f"publishing to {self._topic}", total=None)
            for values in source:
                self._begin(values)
                self._finish(_FLOOD_LISTS_MAX, show=show)
                counter.update(task, completed=self._publisher.counts.acknowledged)
                if for_s is not None and time.monotonic() - started >= for_s:
                    break
            self._finish(0, show=show)

    def _begin(self, values: list[bytes]) -> None:
        begun = None if self._records is None else self._records.begin(len(values), self._id)
        self._under_way.append((values, begun, self._thread.begin(self._publish(values, begun))))

    async def _publish(self, values: list[bytes], begun: Begun | None) -> list[PairPublished]:
        if begun is not None:
            pairs = zip(values, begun.ids, strict=True)
            return await asyncio.gather(
                *(self._publisher.publish(self._topic, value, id=name) for value, name in pairs)
            )
        if self._id is not None:
            return [await self._publisher.publish(self._topic, value, id=self._id) for value in values]
        return await self._publisher.publish_many(self._topic, values)

    def _finish(self, under_way_max: int, *, show: bool) -> None:
        """Wait until no more than so many lists are under way; report on those that are done."""
        while self._under_way:
            values, begun, publishing = self._under_way[0]
            if len(self._under_way) <= under_way_max and not publishing.done():
                return
            try:
                published = publishing.result()
            except HoldfastError as error:
                raise Stopped(error, self._publisher.counts.acknowledged) from error
            self._under_way.popleft()
            if self._records is not None and begun is not None:
                self._records.end(begun)
            if show:
                for value, one in zip(values, published, strict=True):
                    self._show(value, one)

    def _show(self, value: bytes, published: PairPublished) -> None:
        """As the subscriber shows it, from the other end."""
        if self._as_json:
            output.print_json({"topic": self._topic, "id": published.id, "broker": published.broker})
        else:
            sys.stdout.buffer.write(f"[{published.broker}] {self._topic} ".encode() + value + b"\n")
            sys.stdout.buffer.flush()


def summary(topic: str, counts: Counts) -> str:
    """`topicC: 400 messages sent, 400 acknowledged, 5 resent, 1 switch`."""
    return (
        f"{topic}: {plural(counts.sent, 'message')} sent, {counts.acknowledged:,} acknowledged, "
        f"{counts.resent:,} resent, {plural(counts.switches, 'switch')}"
    )


def publish_to_pair(
    topic: str,
    addresses: list[str],
    source: Iterator[list[bytes]],
    *,
    rate: float | None,
    for_s: float | None,
    is_single: bool,
    message_id: str | None,
    ack_timeout_s: float,
    retain: int,
    records: SentRecords | None,
    as_json: bool,
) -> None:
    """The whole command. Raises `Stopped` at the first message that is not acknowledged."""
    from holdfast.client.loop_thread import LoopThread

    thread = LoopThread()
    started = time.monotonic()
    try:
        publisher = thread.run(_opened(addresses, ack_timeout_s, retain))
        publishing = PairPublishing(thread, publisher, topic, message_id=message_id, records=records, as_json=as_json)
        try:
            if rate is not None:
                publishing.at_a_rate(source, rate, for_s)
            else:
                publishing.at_once(source, for_s, show=is_single and not as_json)
        finally:
            # After an error, or Ctrl-C, nobody waits for the rest.
            thread.run(publisher.close(quietly=True))
            if not as_json:
                output.note(summary(topic, publisher.counts))
        if as_json and rate is None:
            output.print_json(_as_object(topic, publisher.counts, time.monotonic() - started))
    finally:
        thread.stop()


async def _opened(addresses: list[str], ack_timeout_s: float, retain: int) -> PairPublisher:
    from holdfast.client import PairPublisher

    publisher = PairPublisher(
        *addresses,
        retain=retain,
        ack_timeout_s=ack_timeout_s,
        on_change=lambda change: output.note(f"holdfast: {change}"),
    )
    return await publisher.__aenter__()


def _as_object(topic: str, counts: Counts, seconds: float) -> dict[str, Any]:
    return {
        "topic": topic,
        "sent": counts.sent,
        "acknowledged": counts.acknowledged,
        "resent": counts.resent,
        "switches": counts.switches,
        "seconds": round(seconds, 6),
    }
