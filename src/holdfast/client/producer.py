"""Publishing one message or many, and what may be tried twice.

A message with an id may be sent again after a lost connection: the broker recognises it. So `publish`
gives every message an id unless told not to, and never leaves the caller in doubt. `publish_many` does
not by default: ids cost the broker work for every message, which is most of the work there is. What has
no id is sent again only if the broker certainly did not get it; else the call fails as
`OutcomeUnknown` and the caller decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from holdfast.client.api import Api
from holdfast.client.bulk import BulkJob, Piece, encoded, partition_pieces, plain_pieces, shared
from holdfast.client.encoding import Headers, IdMaker, Value, new_message
from holdfast.client.errors import MaybeStored
from holdfast.client.lane import Waiting
from holdfast.client.results import PublishResults
from holdfast.client.route import Route
from holdfast.client.store import Messages
from holdfast.model.errors import BadValue, RemoteError
from holdfast.model.messages import NewMessage, Published
from holdfast.model.names import topic_name

# After these the topic has other partitions than it had, or none.
_TOPIC_CHANGED_CODES = ("topic_not_found", "partition_not_found")


class Producer:
    """All publishing of one client."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ids = IdMaker()
        self._routes: dict[str, Route] = {}

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: str | bytes | None,
        id: str | None,
        headers: Headers | None,
        partition: int | None,
        retry_safe: bool,
    ) -> Published:
        route = self._route(topic)
        _check_partition(partition)
        message_id = self._ids.next() if id is None and retry_safe else id
        message = new_message(value, key, message_id, headers)
        deadline = asyncio.get_running_loop().time() + self._api.timeout_s
        waiting = Waiting(message, deadline, resend=message_id is not None)

        def hand_over() -> None:
            waiting.resend = message_id is not None and not route.is_assumed
            asked = route.partition_of(message.key, id) if partition is None else partition
            route.lane(route.gathering_turn() if asked is None else asked).add(waiting)

        try:
            await route.submit(hand_over)
            return await waiting.future
        except MaybeStored as error:
            raise MaybeStored(f"{error.message} (its id is {message_id})") from error
        except RemoteError as error:
            if error.code in _TOPIC_CHANGED_CODES:
                route.forget()
            raise

    async def publish_many(
        self, topic: str, items: Sequence[Value | NewMessage], *, partition: int | None, retry_safe: bool
    ) -> PublishResults:
        route = self._route(topic)
        _check_partition(partition)
        messages = encoded(items, self._ids, retry_safe=retry_safe)
        if not messages:
            return PublishResults(0)
        jobs: list[BulkJob] = []

        def hand_over() -> None:
            streams = self._streams(route, messages, partition)
            has_ids = isinstance(messages[0], NewMessage) and messages[0].id is not None
            resend = has_ids and not route.is_assumed
            jobs.append(BulkJob(len(messages), streams, route.lane, self._api.timeout_s, resend=resend))
            jobs[0].start()

        try:
            await route.submit(hand_over)
            return await jobs[0].done
        except RemoteError as error:
            if error.code in _TOPIC_CHANGED_CODES:
                route.forget()
            raise

    async def drain(self) -> None:
        """Wait until every publish that was begun is answered."""
        for route in list(self._routes.values()):
            await route.drain()

    def _route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            route = self._routes[topic] = Route(self._api, self._ids, topic_name(topic))
        return route

    def _streams(self, route: Route, messages: Messages, partition: int | None) -> list[Iterator[Piece]]:
        if partition is not None:
            return [plain_pieces(messages, lambda: partition)]
        if isinstance(messages[0], bytes):
            return shared(plain_pieces(messages, route.next_turn), route.partitions)
        asked_for = [self._asked_partition(route, message) for message in messages]
        if not any(asked is not None for asked in asked_for):
            return shared(plain_pieces(messages, route.next_turn), route.partitions)
        by_partition: dict[int, list[int]] = {}
        turn = route.next_turn()
        for place, asked in enumerate(asked_for):
            by_partition.setdefault(turn if asked is None else asked, []).append(place)
        return [partition_pieces(messages, places, number) for number, places in by_partition.items()]

    def _asked_partition(self, route: Route, message: NewMessage | bytes) -> int | None:
        assert isinstance(message, NewMessage)
        return route.partition_of(message.key, None if self._ids.made(message.id) else message.id)


def _check_partition(partition: int | None) -> None:
    if partition is not None and partition < 0:
        raise BadValue(f"partitions are numbers from 0, not {partition}")
