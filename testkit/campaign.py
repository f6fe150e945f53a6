"""A broker that ends under load, round after round: what it acknowledged is stored once, in order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from testkit.batches import ForeignRecord
from testkit.flood import Flood, Sent
from testkit.processes import BrokerProcess
from testkit.sizes import dice
from testkit.text_client import PUBACK

TOPICS = ("a", "b", "c", "d", "e")
_RESENT_AT_ONCE = 500


class Campaign:
    """Rounds of a flood into some topics of one broker, and a check after each round.

    Every topic holds what it held before the round, and then a beginning of what was sent to it: at least as much as
    was acknowledged. With ids, all that was sent can be sent again, and is there once.
    """

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        *,
        topics: Sequence[str] = TOPICS,
        with_ids: bool = False,
        window: int = 5_000,
    ) -> None:
        self.broker = broker
        self.topics = topics
        self.dice = dice(name)
        self.acknowledged = 0
        self._with_ids = with_ids
        # How many lines may be without an answer: the smaller, the slower the flood.
        self._window = window
        self._rounds = 0
        self._found: dict[str, list[ForeignRecord]] = {topic: [] for topic in topics}
        self._before = self._found

    @property
    def stored(self) -> int:
        """How many messages were found last, in all topics."""
        return sum(map(len, self._found.values()))

    def round(self, end: Callable[[], object], *, answers: Sequence[int] = (1, 50, 2_000)) -> Flood:
        """End the broker in the middle of a flood, start it again, and check what it has."""
        flood = self.flood(answers=answers)
        end()
        flood.end()
        self.broker.restart()
        self.check(flood)
        return flood

    def flood(self, *, answers: Sequence[int] = (1, 50, 2_000)) -> Flood:
        """A flood that is under way: the broker has answered one of these numbers of lines, and perhaps some more."""
        self._rounds += 1
        self._before = self._found
        flood = Flood(self.broker, self._lines(self._rounds), window=self._window)
        least = self.dice.choice(answers)
        flood.wait_for(lambda: len(flood.answers) >= least)
        time.sleep(self.dice.random() * 0.1)
        return flood

    def resend(self, flood: Flood) -> None:
        """Send again what was not acknowledged, and some of what was; then everything is there."""
        promised = {sent.message_id for sent in flood.acknowledged}
        again = [sent for sent in flood.sent if sent.message_id not in promised or self.dice.random() < 0.3]
        with self.broker.connect() as client:
            for first in range(0, len(again), _RESENT_AT_ONCE):
                part = again[first : first + _RESENT_AT_ONCE]
                client.send(b"".join(sent.line for sent in part))
                assert client.lines(len(part)) == [PUBACK] * len(part)
        self.check(flood, is_whole=True)

    def check(self, flood: Flood, *, is_whole: bool = False) -> None:
        """What the topics hold after this flood; `is_whole` if all that was sent must be there."""
        described = self.broker.topics()
        promised = flood.acknowledged
        self.acknowledged += len(promised)
        self._found = {topic: self.broker.stored(topic) if topic in described else [] for topic in self.topics}
        for topic, records in self._found.items():
            before = self._before[topic]
            assert records[: len(before)] == before, "older messages changed"
            new = [(record.value, _id_of(record)) for record in records[len(before) :]]
            sent = [(each.value, each.message_id) for each in flood.sent if each.topic == topic]
            assert new == sent[: len(new)], "messages are out of order, are there twice, or nobody sent them"
            least = len(sent) if is_whole else sum(each.topic == topic for each in promised)
            assert len(new) >= least, f"{least - len(new)} acknowledged messages are lost"
            if records:
                (partition,) = described[topic]["partitions"]
                assert partition["damaged_batches"] == 0, "a torn tail is called damage"

    def check_nothing_changed(self) -> None:
        """As after a restart: the topics hold what was found last."""
        assert {topic: self.broker.stored(topic) for topic in self.topics} == self._found

    def _lines(self, number: int) -> Iterator[Sent]:
        for i in itertools.count():
            value = b"m%d/%d" % (number, i) + b"." * (i % 97)
            yield Sent(self.topics[i % len(self.topics)], value, f"{number}-{i}" if self._with_ids else None)


def _id_of(record: ForeignRecord) -> str | None:
    found = dict(record.headers).get("holdfast-id")
    return None if found is None else found.decode()
