"""How far a streaming query is: what Spark keeps in its checkpoint, and what its progress shows.

::

    {"offsets": {"orders": {"0": 17, "1": 20}}, "created_ms": {"orders": 1789000000000}, "began": {"orders":
     {"0": 0, "1": 5}}, "gone": ["orders-2025"], "group": "billing", "servers": "127.0.0.1:8090"}

An offset is the next message to be read. `created_ms` tells a topic from another that had its name before: offsets of
the one mean nothing in the other. `began` is where each partition was begun: when its first batch is run again it
begins there too, although messages expired meanwhile, the topic is another one now, or `latest` would be another place.
Spark keeps where batches end, and asks anew where the first one begins. It stays as long as the partition, since
offsets that change are news for Spark. `gone` are topics of which every broker has said once that they are not there:
nobody is asked again, and their offsets stay for a while, in case that a broker was behind and they come back. `group`
and `servers` are there for `progress`, which sees offsets and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.spark.errors import BadOption, with_code

PartitionKey = tuple[str, int]


class StreamOffsets(NamedTuple):
    """The same as values."""

    places: dict[PartitionKey, int]
    created_ms: dict[str, int]
    group: str | None = None
    servers: str = ""
    began: Mapping[PartitionKey, int] = MappingProxyType({})
    gone: frozenset[str] = frozenset()

    def of_topics(self, created_ms: Mapping[str, int]) -> dict[PartitionKey, int]:
        """The places in these very topics, and not in others of the same name."""
        return {
            place: offset
            for place, offset in self.places.items()
            if created_ms.get(place[0]) == self.created_ms.get(place[0])
        }

    def as_json(self) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "offsets": _by_topic(self.places),
            "created_ms": dict(sorted(self.created_ms.items())),
        }
        if self.began:
            kept["began"] = _by_topic(self.began)
        if self.gone:
            kept["gone"] = sorted(self.gone)
        return kept if self.group is None else {**kept, "group": self.group, "servers": self.servers}


def from_json(kept: Mapping[str, Any]) -> StreamOffsets:
    """What a checkpoint has; one of another source is refused."""
    try:
        return StreamOffsets(
            _by_place(kept["offsets"]),
            {topic: int(created_ms) for topic, created_ms in kept["created_ms"].items()},
            kept.get("group"),
            kept.get("servers", ""),
            _by_place(kept.get("began", {})),
            frozenset(map(str, kept.get("gone", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise with_code(BadOption, f"the checkpoint holds offsets that are not of this source: {kept!r:.200}") from None


def _by_topic(places: Mapping[PartitionKey, int]) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(places.items()):
        offsets.setdefault(topic, {})[str(number)] = offset
    return offsets


def _by_place(offsets: Mapping[str, Mapping[str, int]]) -> dict[PartitionKey, int]:
    return {
        (topic, int(number)): int(offset) for topic, numbers in offsets.items() for number, offset in numbers.items()
    }
