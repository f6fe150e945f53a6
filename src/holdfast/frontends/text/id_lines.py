"""`PUBLISH_ID` lines of one connection: stored in their order, whatever is refused in between.

Who sends ids means to send again what was not acknowledged. So that a line which comes again never finds a later one
stored before it, two things hold here:

- One run of lines is under way at a time, as one batch for each topic, which is stored whole or not at all. The next
  run is what came meanwhile. Whatever happens to a batch on its way, nothing of this connection can overtake it.
- When a run is refused, and not for good (anything but a `CallerError`), what follows on the connection is refused,
  too, until the first line of that run comes again: who sent those lines may not have known of the refusal yet.

A connection that its client has left may still have a run under way, while the client sends the same lines through
another one, from the first that is not acknowledged on. Both rows of lines are in order, and what one lacks at its
beginning is stored already. So what is stored is in order as well, whichever row a line comes from first: the second
one with its id is recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.broker.broker import Broker
from holdfast.broker.results import failure
from holdfast.frontends.text.replies import Reply
from holdfast.model.errors import BadMessageId, CallerError, HoldfastError, Unavailable
from holdfast.model.messages import NewMessage, Published
from holdfast.wire.text import PublishId, error_line


def _nobody_waits(reply: Reply, answers: bytes) -> None:
    pass


def _nothing() -> None:
    pass


class IdLines:
    """Publishes one run of lines after the other; `on_answered` is told what to fill the place of a run with."""

    def __init__(
        self,
        broker: Broker,
        published: bytes,
        on_answered: Callable[[Reply, bytes], None],
        on_error: Callable[[HoldfastError], None],
        abort: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._published = published
        self._on_answered = on_answered
        self._on_error = on_error
        self._abort = abort
        self._refused_id: bytes | None = None
        self._run: _Run | None = None
        self._sorting: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Nothing is under way and nothing comes any more: the connection is not held."""
        assert self._run is None, "its answer is awaited"
        self._on_answered, self._abort = _nobody_waits, _nothing

    @property
    def is_under_way(self) -> bool:
        return self._run is not None

    def publish(self, lines: Sequence[PublishId], reply: Reply) -> None:
        """Have a run of lines stored; not while another one is under way."""
        assert self._run is None, "one run at a time"
        run = self._run = _Run(lines, reply)
        for place, line in enumerate(lines):
            if self._refused_id not in (None, line.message_id):
                run.told.append(error := self._is_behind_a_refused_one())
                run.errors[place] = error
                continue
            self._refused_id = None
            try:
                run.add(place, line)
            except BadMessageId as bad:
                run.refuse([place], bad)
        for topic in list(run.open):
            self._store(run, topic)
        if not run.open:
            self._settled(run)

    def _is_behind_a_refused_one(self) -> Unavailable:
        refused = (self._refused_id or b"")[:60].decode("utf-8", "replace")
        return Unavailable(f"message {refused!a} was refused before this one; send that one first, or connect anew")

    def _store(self, run: _Run, topic: bytes) -> None:
        try:
            stored = self._broker.publish(topic.decode("utf-8", "replace"), run.messages(topic))
        except HoldfastError as error:
            run.ended(topic, error)
            return

        def settle(done: asyncio.Future[list[Published]]) -> None:
            self._ended(run, topic, failure(done))
            if not run.open:
                self._settled(run)

        if stored.done():
            self._ended(run, topic, failure(stored))
        else:
            stored.add_done_callback(settle)

    def _ended(self, run: _Run, topic: bytes, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, HoldfastError):
            # A bug of ours: nobody can say what is stored, and the client shall not wait for ever.
            self._abort()
            raise error
        run.ended(topic, error)

    def _settled(self, run: _Run) -> None:
        if run.unsorted:
            self._sorting = asyncio.get_running_loop().create_task(self._sort_out(run))
            return
        for error in run.told:
            self._on_error(error)
        if run.first_to_come_again is not None:
            self._refused_id = run.lines[run.first_to_come_again].message_id
        self._run = None
        answers = [self._published if error is None else error_line(error) for error in run.errors]
        self._on_answered(run.reply, b"".join(answers))

    async def _sort_out(self, run: _Run) -> None:
        """A batch was refused for good, and one of its messages may be to blame: each has its own try, in order."""
        for topic in run.unsorted:
            places = run.places[topic]
            for at, place in enumerate(places):
                try:
                    await self._broker.publish(topic.decode("utf-8", "replace"), [run.message(place)])
                except CallerError as error:
                    run.refuse([place], error)
                except HoldfastError as error:
                    run.refuse(places[at:], error)
                    break
                except Exception:
                    self._abort()
                    raise
        run.unsorted.clear()
        self._settled(run)


class _Run:
    """Lines that are under way together, and what became of each."""

    def __init__(self, lines: Sequence[PublishId], reply: Reply) -> None:
        self.lines = lines
        self.reply = reply
        self.errors: list[HoldfastError | None] = [None] * len(lines)
        self.told: list[HoldfastError] = []
        self.first_to_come_again: int | None = None
        self.places: dict[bytes, list[int]] = {}
        # Topics whose batch is under way, and those whose batch was refused for good.
        self.open: set[bytes] = set()
        self.unsorted: list[bytes] = []
        self._messages: dict[int, NewMessage] = {}

    def add(self, place: int, line: PublishId) -> None:
        try:
            # Not `replace`: two ids that only differ in such bytes would be taken for one, and a message lost.
            message_id = line.message_id.decode()
        except UnicodeDecodeError:
            raise BadMessageId(f"a message id is UTF-8 text, not {line.message_id[:60]!a}") from None
        self._messages[place] = NewMessage(value=line.payload, id=message_id)
        self.places.setdefault(line.topic, []).append(place)
        self.open.add(line.topic)

    def message(self, place: int) -> NewMessage:
        return self._messages[place]

    def messages(self, topic: bytes) -> list[NewMessage]:
        return [self._messages[place] for place in self.places[topic]]

    def ended(self, topic: bytes, error: HoldfastError | None) -> None:
        self.open.discard(topic)
        if error is None:
            return
        if isinstance(error, CallerError) and len(self.places[topic]) > 1:
            self.unsorted.append(topic)
        else:
            self.refuse(self.places[topic], error)

    def refuse(self, places: Sequence[int], error: HoldfastError) -> None:
        self.told.append(error)
        for place in places:
            self.errors[place] = error
        if not isinstance(error, CallerError):
            first = self.first_to_come_again
            self.first_to_come_again = places[0] if first is None else min(first, places[0])
