"""Plain counters of what the broker did, counted once a batch, never once a message."""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from typing import TypeVar

import msgspec

from holdfast.broker.results import failure
from holdfast.model.outcomes import HoldfastError

T = TypeVar("T")


class BrokerStats(msgspec.Struct, kw_only=True):
    """Everything since the start; front ends and the node publish it as metrics."""

    published_messages: int = 0
    published_bytes: int = 0
    published_batches: int = 0
    duplicates: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    skipped_damaged: int = 0
    skipped_expired: int = 0
    subscriptions: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)

    def count_publish(self, messages: int, size: int) -> None:
        self.published_messages += messages
        self.published_bytes += size
        self.published_batches += 1

    def count_stored(self, appended: Future[T], messages: int, size: int) -> Future[T]:
        """Count a batch as published once its append has ended well; what is refused is not."""

        def count(done: Future[T]) -> None:
            if failure(done) is None:
                self.count_publish(messages, size)

        if appended.done():
            count(appended)
        else:
            appended.add_done_callback(count)
        return appended

    def count_error(self, error: HoldfastError) -> None:
        self.errors[error.code] += 1

    def count_delivery(self, messages: int, size: int) -> None:
        self.delivered_messages += messages
        self.delivered_bytes += size
