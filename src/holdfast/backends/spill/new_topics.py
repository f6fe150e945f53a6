"""Topics that nobody can say of whether they exist, while the store is away.

One that may be created by use is taken to be there by whoever looks. It counts as a new one once something is kept for
it: it is made when that is stored, and the partitions of its messages are chosen then.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.backends.spill.topic_memory import TopicMemory
from holdfast.broker.backend import Backend
from holdfast.model import names
from holdfast.model.errors import BadTopicName, TooManyTopics, Unavailable
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.limits import TOPICS_MAX
from holdfast.model.topics import Topic, TopicConfig


class NewTopics:
    """`is_away` says whether nobody can say which topics there are."""

    def __init__(
        self,
        inner: Backend,
        remembered: TopicMemory,
        *,
        auto_create: bool,
        is_away: Callable[[], bool],
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        self._inner = inner
        self._remembered = remembered
        self._auto_create = auto_create
        self._is_away = is_away
        self._now_ms = now_ms
        self._new: set[TopicName] = set()

    def topic(self, name: TopicName) -> Topic | None:
        """Raises `Unavailable`."""
        try:
            known = self._inner.topic(name)
        except Unavailable:
            known = self._remembered.topic(name)
            if known is None and not self._auto_create:
                raise
        if known is not None or not self._is_away() or not self._auto_create:
            return known
        try:
            checked = names.topic_name(name)
        except BadTopicName:
            return None
        return Topic(name=checked, config=TopicConfig(), created_ms=self._now_ms(), is_assumed=True)

    def is_known(self, name: TopicName) -> bool:
        """Of a topic that something is kept for: whether it is known how it is divided. Raises `TooManyTopics`."""
        if self._is_there(name):
            return True
        if name not in self._new:
            room = min(TOPICS_MAX - len(self._inner.topics()), self._inner.partitions_left)
            if len(self._new) >= room:
                self._new = {each for each in self._new if not self._is_there(each)}
            if len(self._new) >= room:
                raise TooManyTopics(
                    f"{len(self._new)} new topics wait for the store, which has room for {max(0, room)}; "
                    "publish to one that is there, or try again when the store is back"
                )
            self._new.add(name)
        return False

    def _is_there(self, name: TopicName) -> bool:
        try:
            return self._inner.topic(name) is not None
        except Unavailable:
            return self._remembered.topic(name) is not None

    def clear(self) -> None:
        """Nothing is kept any more."""
        self._new.clear()
