"""Where reading begins: `earliest`, `latest`, an offset, or how long ago (`-10m`), as an offset."""

from __future__ import annotations

import re
import time

from holdfast.client.api import Api, Place
from holdfast.client.retry import Patience
from holdfast.model.errors import BadValue, RemoteError
from holdfast.model.ids import TopicName
from holdfast.model.topics import TopicDescription

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,9})(ms|s|m|h|d)\Z")


async def resolve(api: Api, topic: str, partition: int, place: Place) -> int:
    """The offset that `place` means in one partition now."""
    if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
        return place
    if place in ("earliest", "latest"):
        return await api.offset_at(topic, partition, place)
    ago = _AGO.match(place) if isinstance(place, str) else None
    if ago is None:
        raise BadValue(
            f"{place!r} is no place to start; give 'earliest', 'latest', an offset, or how long ago as '-10m'"
        )
    return await api.offset_at(topic, partition, time.time_ns() // 1_000_000 - int(ago[1]) * _UNIT_MS[ago[2]])


async def source_of(api: Api, topic: str) -> TopicDescription:
    """The topic that subscribers of `topic` read; `topic` is created if it is not there.

    The output of a processor is made by the broker a moment after its topic, so it is waited for.
    """
    description = await api.describe_or_create(topic)
    if description.delivers_from == description.topic:
        return description
    patience = Patience(f"waiting for {description.delivers_from}", api.timeout_s, api.addresses)
    while True:
        try:
            return await api.describe(description.delivers_from)
        except RemoteError as error:
            if error.code != "topic_not_found":
                raise
            await patience.failed(error)


async def live_positions(api: Api, source: TopicDescription, start: Place) -> dict[int, int]:
    """Where a reader without a name begins in each partition."""
    if start == "latest":
        return {each.partition: each.end_offset for each in source.partitions}
    if start == "earliest":
        return {each.partition: each.start_offset for each in source.partitions}
    return {each.partition: await resolve(api, source.topic, each.partition, start) for each in source.partitions}


async def cursor_positions(api: Api, source: TopicName, name: str, start: Place) -> dict[int, int]:
    """Where a named reader stands; one that is new begins at `start`."""
    await api.make_cursor(source, name, start)
    return {each.partition: each.offset for each in (await api.cursor(source, name)).partitions}
