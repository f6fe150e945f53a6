"""The broker's JSON answers as types. Fields that a newer broker adds are ignored."""

from __future__ import annotations

import msgspec

from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.messages import BatchPublished
from holdfast.model.topics import CursorDescription, TopicDescription


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers; `addresses` are its front ends by name, `auto_create` whether use makes topics."""

    version: str
    node: str
    addresses: dict[str, str]
    started_ms: TimestampMs
    uptime_ms: int
    auto_create: bool = True


class TopicList(msgspec.Struct, frozen=True):
    topics: list[TopicDescription]


class CursorList(msgspec.Struct, frozen=True):
    cursors: list[CursorDescription]


class OffsetAnswer(msgspec.Struct, frozen=True):
    offset: Offset


class BatchResults(msgspec.Struct, frozen=True):
    results: list[BatchPublished]
