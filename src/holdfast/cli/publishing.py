"""Publishing values for a command, keeping count of what was acknowledged, and saying so when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from holdfast.cli.quantities import plural
from holdfast.model.errors import HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.client import BlockingClient
    from holdfast.client.records import SentRecords
    from holdfast.model.messages import Published


class Stopped(OutcomeUnknown):
    """Publishing ended half way: the reason, with its code, and how many messages were stored before.

    What is known about the list that failed stands in the reason.
    """

    def __init__(self, cause: HoldfastError, acknowledged: int) -> None:
        counted = plural(acknowledged, "message") if acknowledged else "no message"
        super().__init__(f"{cause.message}; {counted} had been acknowledged before")
        self.code = cause.code  # type: ignore[misc]


# Of a message that the broker has and its store has not.
BUFFERED: Final = "is kept until its store is back"


class Range(NamedTuple):
    """Where the messages of one partition stand: the first and the last offset, and how many they are."""

    first_offset: int
    last_offset: int
    messages: int


class Summary(NamedTuple):
    topic: str
    messages: int
    duplicates: int
    ranges: dict[int, Range]
    seconds: float
    # Kept by the broker until its store is back: they have no offsets yet.
    buffered: int = 0

    def as_object(self) -> dict[str, Any]:
        partitions = [{"partition": number, **taken._asdict()} for number, taken in sorted(self.ranges.items())]
        return {
            "topic": self.topic,
            "messages": self.messages,
            "duplicates": self.duplicates,
            **({"buffered": self.buffered} if self.buffered else {}),
            "partitions": partitions,
            "seconds": round(self.seconds, 6),
        }

    def as_text(self) -> str:
        before = f", {self.duplicates:,} of them were there before" if self.duplicates else ""
        if self.buffered:
            before += f", {self.buffered:,} of them are kept until the store is back"
        if self.messages == 1 and self.buffered:
            return f"{self.topic}: the message {BUFFERED}"
        if self.messages == 1:
            ((partition, taken),) = self.ranges.items()
            was_there = " (was there before)" if self.duplicates else ""
            return f"{self.topic}/{partition} at offset {taken.first_offset}{was_there}"
        shown = sorted(self.ranges.items())[:4]
        places = ", ".join(f"{number}: {taken.first_offset} to {taken.last_offset}" for number, taken in shown)
        more = "" if len(self.ranges) <= len(shown) else f", and {len(self.ranges) - len(shown)} more"
        where = f" (offsets in partition {places}{more})" if shown else ""
        speed = f" in {self.seconds:.2f} s" if self.messages else ""
        return f"published {plural(self.messages, 'message')} to {self.topic}{where}{speed}{before}"


class Publisher:
    """Publishes lists of values with the same key, headers and partition.

    Values get ids, so that what was under way when a connection broke is sent again and stored once. A
    flood gets them only with `retry_safe`: there they would be most of the work.
    """

    # Longer lists are a flood. What waits for a broker that was away goes out in lists of this many.
    TOGETHER_MAX: ClassVar = 1000

    def __init__(
        self,
        broker: BlockingClient,
        topic: str,
        *,
        key: str | None,
        message_id: str | None,
        headers: dict[str, str],
        partition: int | None,
        retry_safe: bool,
        records: SentRecords | None = None,
    ) -> None:
        self.topic = topic
        self._records = records
        self.acknowledged = 0
        self._broker = broker
        self._key = key
        self._id = message_id
        self._headers = headers
        self._partition = partition
        self._retry_safe = retry_safe
        self._duplicates = 0
        self._buffered = 0
        self._ranges: dict[int, Range] = {}

    def publish(self, values: Sequence[bytes]) -> Sequence[Published]:
        """Publish all of them; returns where each stands. Raises `Stopped`."""
        if not values:
            return []
        try:
            results = self._publish(values) if self._records is None else self._publish_recorded(values, self._records)
        except HoldfastError as error:
            raise Stopped(error, self.acknowledged) from error
        self._count(results)
        return results

    def _publish_recorded(self, values: Sequence[bytes], records: SentRecords) -> Sequence[Published]:
        """With ids of our own, since an audit knows a message by its id."""
        begun = records.begin(len(values), self._id)
        results = self._publish(values, begun.ids)
        records.end(begun, results)
        return results

    def summary(self, seconds: float) -> Summary:
        return Summary(self.topic, self.acknowledged, self._duplicates, self._ranges, seconds, self._buffered)

    def _publish(self, values: Sequence[bytes], ids: Sequence[str] | None = None) -> Sequence[Published]:
        from holdfast.client import NewMessage

        if len(values) == 1:
            return [
                self._broker.publish(
                    self.topic,
                    values[0],
                    key=self._key,
                    id=self._id if ids is None else ids[0],
                    headers=self._headers,
                    partition=self._partition,
                )
            ]
        messages: Sequence[Any] = values
        if self._key is not None or self._headers or ids is not None:
            key = None if self._key is None else self._key.encode("utf-8", "surrogateescape")
            headers = tuple(
                (name, content.encode("utf-8", "surrogateescape")) for name, content in self._headers.items()
            )
            named = [None] * len(values) if ids is None else ids
            pairs = zip(values, named, strict=True)
            messages = [NewMessage(value=value, key=key, headers=headers, id=name) for value, name in pairs]
        retry_safe = self._retry_safe or len(values) <= self.TOGETHER_MAX or ids is not None
        return self._broker.publish_many(self.topic, messages, partition=self._partition, retry_safe=retry_safe)

    def _count(self, results: Sequence[Published]) -> None:
        self.acknowledged += len(results)
        by_partition: dict[int, list[int]] = {}
        for each in results:
            if each.buffered:
                self._buffered += 1
                continue
            by_partition.setdefault(each.partition, []).append(each.offset)
            self._duplicates += each.duplicate
        for partition, offsets in by_partition.items():
            known = self._ranges.get(partition, Range(offsets[0], offsets[0], 0))
            self._ranges[partition] = Range(
                min(known.first_offset, *offsets), max(known.last_offset, *offsets), known.messages + len(offsets)
            )
