"""Callbacks: subscribers that the cluster connects to, and how each of them stands."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model.ids import CursorName, TimestampMs, TopicName

# `plain`: MESSAGE lines. `numbered`: each line also says where it stands, so that a receiver sees each message once.
CallbackFormat = Literal["plain", "numbered"]
# `refused`: this broker may not connect there, or what answers is no receiver.
DeliveryState = Literal["connected", "waiting", "refused"]


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, as all nodes know it.

    `number` tells it from every other, also one of the same name, and from itself before somebody moved its cursor.
    """

    topic: TopicName
    name: CursorName
    address: str
    format: CallbackFormat
    created_ms: TimestampMs
    number: int = 0
    # Messages, by partition, that were gone before they could be delivered.
    lost: dict[int, int] = {}


class CallbackDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """How one node gets along with a receiver; `error` is why it last had to connect again."""

    topic: TopicName
    name: CursorName
    node: str
    state: DeliveryState
    partitions: list[int]
    unacknowledged: int
    error: str | None = None
    error_ms: TimestampMs | None = None


class CallbackDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription and how it stands.

    `state` is the worst of its deliveries; where no node delivers, as during an election, it is `waiting`. `behind`
    counts messages that are not acknowledged, `lost` those that retention or damage took first.
    """

    topic: TopicName
    name: CursorName
    callback: str
    format: CallbackFormat
    created_ms: TimestampMs
    state: DeliveryState
    behind: int
    lost: int
    error: str | None
    deliveries: list[CallbackDelivery]
