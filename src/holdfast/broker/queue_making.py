"""Queues are made: each number is given once, and a request with an id makes one queue, however often it comes.

Numbers are drawn from a cursor of an internal topic, like messages: no two nodes get the same number, whichever node
leads, and the number of a deleted queue is not given again. Numbers whose topics were created by other means are passed
over; a request with an id then draws again under another name, so that it takes the same way when it is repeated.

A request with an id may run on several nodes at the same time. All of them draw the same number, and one creates the
topic. The others recognise that topic as theirs: it carries a sum of the request's id (`Topic.maker`), which is part of
the replicated decision that creates it.

Crash cases of a request with an id: if a number was drawn and no topic created, the repeated request creates it. If the
topic was created and not noted, the topic itself shows it. If it was noted and the topic is gone, the queue was
deleted, and is not created again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from holdfast.broker import queue_names
from holdfast.model import names
from holdfast.model.draws import OUTDATED_DRAW, Draw, Drawn
from holdfast.model.errors import NotReplicable, QueueNotFound, RequestOutdated, TooManyTopics, TopicExists
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import Topic, TopicConfig

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

NUMBERS: Final = TopicName(f"{names.INTERNAL_PREFIX}queues")
LAST_NUMBER: Final = CursorName("holdfast.last-number")
# From this one, requests draw when their queue is made.
_MADE: Final = CursorName("holdfast.made")
_END: Final = Offset(queue_names.QUEUE_ID_MAX + 1)
# Where no number was drawn yet, they begin behind the topics that are there; one far above was not numbered by anybody.
_NUMBERED_MAX: Final = 2**32
# A number whose topic somebody made by hand is passed over; so often in a row that happens to nobody.
_NUMBERS_TRIED: Final = 100
_MAKER_LENGTH: Final = 16


class QueueMaking:
    """Makes the queues of one broker. `session` is a name that no other broker has, nor this one before."""

    def __init__(self, broker: Broker, session: str) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._reader = f"n.{session}"
        self._made = 0
        self._drawing = asyncio.Lock()

    async def make(self, request_id: str | None) -> int:
        """The number of a new queue. With the id of a request that was answered before, the same queue again."""
        request = None if request_id is None else queue_names.draw_of(request_id)
        await self._backend.catch_up_cursors()
        try:
            if self._backend.topic(NUMBERS) is None:
                # Somebody else may be faster, through another node.
                with contextlib.suppress(TopicExists):
                    await self._backend.create_topic(NUMBERS, TopicConfig(partitions=1))
            next_number = self._own_number
        except NotReplicable:
            if request is not None:
                raise
            # A plain pair replicates messages and nothing else. Only one of the two creates anything.
            next_number = self._free_number
        if request is not None:
            return await self._make_for(request)
        for _ in range(_NUMBERS_TRIED):
            number = await next_number()
            if await self._make(number):
                return number
        raise TopicExists("the topics with the next numbers exist already; try again")

    async def next_number(self) -> int:
        """What the next queue will get, as far as has been decided by now."""
        await self._backend.catch_up_cursors()
        return await self._free_number()

    async def _make_for(self, request: Draw) -> int:
        for tries in range(_NUMBERS_TRIED):
            drawn = await self._drawn(_tried(request, tries))
            number = drawn.first
            if drawn.is_repeat:
                if (await self._drawn_before(LAST_NUMBER, _tried(request, tries + 1))).count:
                    continue
                if self._topic(number) is None and (await self._drawn_before(_MADE, request)).count:
                    raise QueueNotFound(
                        f"queue {number}, which this request made, was deleted; another request_id makes a new one"
                    )
            if await self._make(number, _maker(request)):
                await self._backend.draw_cursor(NUMBERS, _MADE, 0, start=Offset(0), end=_END, wanted=[request])
                return number
        raise TopicExists("the topics with the next numbers exist already; try again with another request_id")

    async def _make(self, number: int, maker: str = "") -> bool:
        """Whether the queue was created, now or before by the same maker. Otherwise its topic is somebody else's."""
        try:
            await self._broker.create_topic(queue_names.topic_of(number), TopicConfig(partitions=1), maker)
        except TopicExists:
            topic = self._topic(number)
            return bool(maker) and topic is not None and topic.maker == maker
        return True

    # --- numbers ------------------------------------------------------------------------------------

    async def _own_number(self) -> int:
        # One after the other: of a node's own draws only the last is remembered.
        async with self._drawing:
            self._made += 1
            return (await self._drawn(Draw(self._reader, str(self._made)))).first

    async def _drawn(self, request: Draw) -> Drawn:
        start = Offset(await self._free_number())
        [drawn] = await self._backend.draw_cursor(NUMBERS, LAST_NUMBER, 0, start=start, end=_END, wanted=[request])
        if drawn == OUTDATED_DRAW:
            raise RequestOutdated("a later request of the same sender came before this one")
        if not drawn.count:
            raise TooManyTopics("all numbers that queues may have were given")
        return drawn

    async def _drawn_before(self, cursor: CursorName, request: Draw) -> Drawn:
        """What a request has drawn, if anything: where there is nothing to be had, nothing is drawn."""
        nothing = Offset(0)
        [drawn] = await self._backend.draw_cursor(NUMBERS, cursor, 0, start=nothing, end=nothing, wanted=[request])
        return drawn

    async def _free_number(self) -> int:
        """The next one that no topic has, as far as is known here."""
        number: int | None = (self._backend.cursor(NUMBERS, LAST_NUMBER) or {}).get(0)
        if number is None:
            there = (queue_names.queue_id_of(topic.name) or 0 for topic in self._backend.topics())
            number = max((each for each in there if each <= _NUMBERED_MAX), default=0) + 1
        while self._topic(number) is not None:
            number += 1
        return number

    def _topic(self, number: int) -> Topic | None:
        return self._backend.topic(queue_names.topic_of(number))


def is_queue(topic: Topic) -> bool:
    return topic.config.partitions == 1


def _maker(request: Draw) -> str:
    """What the topic of a request's queue carries. A sum, since a request's id may be long."""
    return hashlib.sha256(f"{request.reader}\n{request.request}".encode()).hexdigest()[:_MAKER_LENGTH]


def _tried(request: Draw, tries: int) -> Draw:
    """The name under which a request draws for the next time; no client's reader has a line end."""
    return request if tries == 0 else Draw(f"{request.reader}\n{tries}", request.request)
