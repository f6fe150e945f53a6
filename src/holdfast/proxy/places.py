"""Which group has a topic: looked up, since it may be older than some of the groups, and remembered for seconds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.broker.queue_names import queue_id_of, topic_of
from holdfast.model.errors import NoGroupAnswers, QueueNotFound, TopicNotFound
from holdfast.model.names import path_part, topic_name
from holdfast.proxy.groups import Group, heaviest
from holdfast.proxy.queues import QueueCalls

_REMEMBERED_S: Final = 10.0
_REMEMBERED_MAX: Final = 10_000


class Place(NamedTuple):
    """A group, and what a topic is called there."""

    group: Group
    topic: str


class Places:
    """Finds topics among the groups."""

    def __init__(self, groups: Sequence[Group], queues: QueueCalls) -> None:
        self._groups = groups
        self._queues = queues
        self._known: OrderedDict[str, tuple[Group, float]] = OrderedDict()
        self._looking: dict[str, asyncio.Task[Group | None]] = {}

    async def find(self, topic: str, *, or_new: bool) -> Place:
        """Where it is, or where a new one goes to. Raises `TopicNotFound`, `NoGroupAnswers`, `BadTopicName`."""
        number = queue_id_of(topic)
        if number is not None:
            try:
                group, local = self._queues.place_of(number)
            except QueueNotFound as error:
                raise TopicNotFound(f"{error.message}; names like {topic} are those of queues") from None
            place = Place(group, topic_of(local))
            if or_new and not await self._is_there(topic, place):
                raise TopicNotFound(f"there is no queue {number}; POST /create_queue makes one and answers with its id")
            return place
        topic_name(topic)
        found = self._remembered(topic) or await self._looked_up(topic)
        if found is None:
            if not or_new:
                raise TopicNotFound(f"none of the groups has a topic {topic}; publish to it or create it")
            return Place(heaviest(self._groups, topic), topic)
        return Place(found, topic)

    async def _is_there(self, topic: str, place: Place) -> bool:
        """Whether a queue is there: a broker makes what is published to, and queues get their numbers otherwise."""
        if self._remembered(topic) is not None:
            return True
        status = (await place.group.ask(f"/v1/topics/{place.topic}".encode())).status
        if status == 200:
            self._remember(topic, place.group)
        return status != 404

    def _remembered(self, topic: str) -> Group | None:
        group, since_s = self._known.get(topic, (None, 0.0))
        return group if asyncio.get_running_loop().time() - since_s < _REMEMBERED_S else None

    def _remember(self, topic: str, group: Group) -> None:
        self._known[topic] = (group, asyncio.get_running_loop().time())
        self._known.move_to_end(topic)
        if len(self._known) > _REMEMBERED_MAX:
            self._known.popitem(last=False)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    async def _looked_up(self, topic: str) -> Group | None:
        """Those who ask at the same time share one look."""
        looking = self._looking.get(topic)
        if looking is None:
            looking = self._looking[topic] = asyncio.get_running_loop().create_task(self._look(topic))
            looking.add_done_callback(lambda _: self._looking.pop(topic, None))
        return await asyncio.shield(looking)

    async def _look(self, topic: str) -> Group | None:
        if len(self._groups) == 1:
            return self._groups[0]
        path = f"/v1/topics/{path_part(topic)}".encode()
        answers = await asyncio.gather(*(group.ask(path) for group in self._groups), return_exceptions=True)
        having, silent = [], []
        for group, answer in zip(self._groups, answers, strict=True):
            if isinstance(answer, BaseException):
                silent.append(group.name)
            elif answer.status == 200:
                having.append(group)
            elif answer.status != 404:
                silent.append(group.name)
        if having:
            found = heaviest(having, topic)
            self._remember(topic, found)
            return found
        if silent:
            # It may be there: made anew elsewhere it would be two.
            raise NoGroupAnswers(
                f"no group that answers has topic {topic}, and {', '.join(silent)} cannot be asked; try again"
            )
        return None
