"""What a topic is made of and how it is described."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.errors import BadValue
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.limits import PARTITIONS_PER_TOPIC_MAX

_BEFORE_MAKER: Final = "_"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one topic. `None` for a retention means that messages are kept for ever."""

    partitions: int = 1
    retention_ms: int | None = None
    retention_bytes: int | None = None

    def checked(self) -> TopicConfig:
        if not 1 <= self.partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise BadValue(f"partitions must be 1 to {PARTITIONS_PER_TOPIC_MAX}, not {self.partitions}")
        for name in ("retention_ms", "retention_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadValue(f"{name} must be positive, or absent to keep messages for ever; not {value}")
        return self


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the store knows it; `token` tells it from another that has, or had, its name.

    `id` numbers its partitions' groups, and `voters` are the replicas these groups began with. `is_assumed`: the store
    is away and this broker does not know the topic; it may not exist yet, or have more partitions.
    """

    name: TopicName
    config: TopicConfig
    created_ms: TimestampMs
    id: int = 0
    token: str = ""
    voters: tuple[str, ...] = ()
    is_assumed: bool = False

    @property
    def maker(self) -> str:
        """The request that created this topic, if it gave a name for itself."""
        return self.token.partition(_BEFORE_MAKER)[2]


def topic_token(unique: str, maker: str) -> str:
    """The token of a new topic, which also names the request that creates it, if that has a name."""
    return f"{unique}{_BEFORE_MAKER}{maker}" if maker else unique


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`end_offset` is the offset the next message will get; messages below it are durable and visible."""

    partition: int
    leader: str | None
    start_offset: Offset
    end_offset: Offset
    size_bytes: int
    segments: int
    damaged_batches: int = 0


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`delivers_from` is the topic subscribers read: this one, or what its processor makes of it.

    `assumed`: see `Topic.is_assumed`. A client that chooses partitions itself asks again before it publishes more.
    """

    topic: TopicName
    created_ms: TimestampMs
    retention_ms: int | None
    retention_bytes: int | None
    messages: int
    size_bytes: int
    delivers_from: TopicName
    partitions: list[PartitionDescription]
    assumed: bool = False


class CursorPosition(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` is the next message the reader has not acknowledged; `lag` is what is left."""

    partition: int
    offset: Offset
    end_offset: Offset
    lag: int


class CursorDescription(msgspec.Struct, frozen=True, kw_only=True):
    topic: TopicName
    name: CursorName
    lag: int
    partitions: list[CursorPosition]
