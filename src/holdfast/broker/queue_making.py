"""Queues are made: each number is given once, and a request with an id makes one queue, however often it comes.

Numbers are drawn from a cursor of an internal topic, like messages are: no two nodes get the same, whoever leads, and
the number of a queue that was deleted is not given again. Topics that somebody made by hand are passed over; a request
with an id then draws under one more name, so that it finds its way again when it comes again.

Crash cases of a request with an id: drawn and not made, it is made when the request comes again. Made and not noted,
its topic is there, which is as good as the note. Noted and not there any more, it was deleted, and is not made again.
"""

from __future__ import annotations

import asyncio
import contextlib
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
            is_new = await self._make(number)
            topic = self._topic(number)
            if is_new or (drawn.is_repeat and topic is not None and is_queue(topic)):
                await self._backend.draw_cursor(NUMBERS, _MADE, 0, start=Offset(0), end=_END, wanted=[request])
                return number
        raise TopicExists("the topics with the next numbers exist already; try again with another request_id")

    async def _make(self, number: int) -> bool:
        """Whether it was made; else it was there."""
        try:
            await self._broker.create_topic(queue_names.topic_of(number), TopicConfig(partitions=1))
        except TopicExists:
            return False
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


def _tried(request: Draw, tries: int) -> Draw:
    """The name under which a request draws for the next time; no client's reader has a line end."""
    return request if tries == 0 else Draw(f"{request.reader}\n{tries}", request.request)
