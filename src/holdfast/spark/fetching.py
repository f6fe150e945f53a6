"""Stored batches of one slice of a partition, read ahead in a thread, through whatever happens to the brokers.

This runs on executors, to which the connector travels as a zip of Python files: it needs nothing that is compiled, so
neither the client nor its parser. It also reads faster that way: an answer is received into one buffer of its size.

A position only moves behind what was handed on. What the brokers cannot give any more is `DataLost`, or skipped and
logged where the query says so; what they cannot give just now is asked for again, of the next broker.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from holdfast.model.errors import HoldfastError, RemoteError
from holdfast.spark.broker_calls import (
    BATCHES_TYPE,
    BrokerConnection,
    Patience,
    Servers,
    address_of,
    is_passing,
    refusal,
    why,
)
from holdfast.spark.checksums import fault_in
from holdfast.spark.errors import DataLost, with_code

# The most that a broker gives in one answer, unless one batch is larger.
FETCH_BYTES: Final = 8 * 1024 * 1024
_FETCH_BYTES_MIN: Final = 64 * 1024
# Of a message, until the first answer tells.
_MEAN_BYTES_ASSUMED: Final = 1024.0
# Answers that wait to be decoded; with the one that is being received and the one that is being decoded, at most
# four are in memory. Columns are larger than the answer they come from where messages are small.
READ_AHEAD: Final = 2
# What a broker waits for a message that another one has told of.
_WAIT_MS: Final = 1000
_SOCKET_TIMEOUT_S: Final = 15.0
# A node that was away does not know of a new topic at once, so one "no" is not believed, nor many of one node alone:
# how often each of them has to say so.
_NO_TOPIC_ASKED: Final = 3

_log = logging.getLogger("holdfast.spark")


class Slice(NamedTuple):
    """What one task reads: messages of one partition from `start` up to, not including, `end`.

    `created_ms` is of the topic that was planned for: another of its name has other messages at these offsets.
    """

    topic: str
    created_ms: int
    partition: int
    start: int
    end: int


class Source(NamedTuple):
    """Where from, and how patiently."""

    servers: Servers
    broker_timeout_s: float
    fail_on_data_loss: bool


class Fetched(NamedTuple):
    """Batches as they are stored: all messages from `start` on are new, and those before it were handed on already.

    Where a batch begins is up to the broker that answers, and each time another question: a PostgreSQL store makes one
    of its rows from the offset on that was asked for, or gives the whole one that somebody published.
    """

    start: int
    batches: bytearray


class _Answer(NamedTuple):
    status: int
    next_offset: int
    # Of the topic; -1 where the answer does not say.
    created_ms: int
    body: bytearray


class _TryAgain(Exception):
    """This try failed; another one may not."""


class _NoTopic(_TryAgain):
    """This broker has no such topic, or another of its name."""


def fetch(source: Source, wanted: Slice) -> Iterator[Fetched]:
    """All messages of the slice, each at or behind the `start` of one answer only; others may stand around them."""
    answers: queue.Queue[Fetched | BaseException | None] = queue.Queue(READ_AHEAD)
    fetcher = _Fetcher(source, wanted)
    reader = threading.Thread(target=_read_ahead, args=(fetcher, answers), name=f"reading {wanted}", daemon=True)
    reader.start()
    try:
        while True:
            answer = answers.get()
            if answer is None:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer
    finally:
        # A query may end before its data does (LIMIT): the thread may wait for room, for an answer or for a broker.
        fetcher.stop()
        with contextlib.suppress(queue.Empty):
            while True:
                answers.get_nowait()
        reader.join()


def _read_ahead(fetcher: _Fetcher, answers: queue.Queue[Fetched | BaseException | None]) -> None:
    try:
        while True:
            fetched = fetcher.next()
            answers.put(fetched)
            if fetched is None:
                return
    except BaseException as error:  # noqa: BLE001 - it is raised where the answers are taken
        answers.put(error)
    finally:
        fetcher.close()


class _Fetcher:
    """One reader of one slice, on one connection at a time."""

    def __init__(self, source: Source, wanted: Slice) -> None:
        self._source = source
        self._wanted = wanted
        self._position = wanted.start
        self._mean_bytes = _MEAN_BYTES_ASSUMED
        self._broker = BrokerConnection(source.servers, wanted.partition, _SOCKET_TIMEOUT_S)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """From another thread: nothing more is wanted."""
        self._stopped.set()
        self._broker.interrupt()

    def next(self) -> Fetched | None:
        """The next batches, or nothing at the slice's end and when nothing more is wanted."""
        patience = Patience(self._source.broker_timeout_s, self._stopped.wait)
        is_told = False
        no_topic: Counter[str] = Counter()
        while self._position < self._wanted.end and not self._stopped.is_set():
            try:
                answer = self._ask(self._messages_path())
                if answer.status == 200:
                    self._check_topic(answer.created_ms)
                    fault = fault_in(answer.body, self._position, answer.next_offset)
                    if fault is not None:
                        raise _TryAgain(fault)
                    if not answer.body:
                        raise _TryAgain(f"has nothing at offset {self._position} yet")
                    fetched = Fetched(self._position, answer.body)
                    self._mean_bytes = len(answer.body) / (answer.next_offset - self._position)
                    self._position = answer.next_offset
                    return fetched
                self._go_on_behind(refusal(answer.body, answer.status), answer.status)
            except (OSError, http.client.HTTPException, _TryAgain) as failure:
                no_topic[self._broker.address] += isinstance(failure, _NoTopic)
                if all(no_topic[address_of(each)] >= _NO_TOPIC_ASKED for each in self._source.servers):
                    self._lost(self._wanted.end, "is gone with its topic")
                    continue
                reason = f"{self._broker.address}: {why(failure)}"
                where = f"{self._wanted.topic}/{self._wanted.partition}"
                if not is_told and not self._stopped.is_set():
                    _log.warning("reading %s: %s; trying again", where, reason)
                    is_told = True
                self._broker.pass_on()
                patience.wait(f"reading {where} at offset {self._position}", reason)
        return None

    def close(self) -> None:
        self._broker.close()

    def _messages_path(self) -> str:
        topic, partition = quote(self._wanted.topic, safe=""), self._wanted.partition
        # A broker gives whole batches: a slice that ends soon is asked for with a little more than it should take.
        wanted_bytes = int((self._wanted.end - self._position) * self._mean_bytes * 1.1)
        bytes_max = min(max(wanted_bytes, _FETCH_BYTES_MIN), FETCH_BYTES)
        query = f"offset={self._position}&max_bytes={bytes_max}&wait_ms={_WAIT_MS}"
        return f"/v1/topics/{topic}/partitions/{partition}/messages?{query}"

    def _ask(self, path: str) -> _Answer:
        """One exchange; the whole answer is received, checked and in one buffer."""
        response = self._broker.ask("GET", path, None, {"Accept": BATCHES_TYPE})
        next_offset = int(response.headers.get("Holdfast-Next-Offset", -1))
        created_ms = int(response.headers.get("Holdfast-Topic-Created-Ms", -1))
        if response.length is None:  # something between us and the broker cuts answers into chunks
            return _Answer(response.status, next_offset, created_ms, bytearray(response.read()))
        body = bytearray(response.length)
        view = memoryview(body)
        received = 0
        while received < len(body):
            count = response.readinto(view[received:])
            if count == 0:
                raise _TryAgain("sent half an answer")
            received += count
        response.close()
        return _Answer(response.status, next_offset, created_ms, body)

    def _check_topic(self, created_ms: int) -> None:
        if created_ms == -1:
            raise _TryAgain("does not say which topic it has read")
        if created_ms != self._wanted.created_ms:
            raise _NoTopic("has another topic of that name")

    def _go_on_behind(self, error: dict[str, Any], status: int) -> None:
        """Move behind what is lost for good, or raise."""
        code, text = error["code"], error["message"]
        if code == "damaged_data" and error.get("next_offset", 0) > self._position:
            self._lost(error["next_offset"], "is damaged on the broker's disk")
            return
        if code == "offset_out_of_range":
            start = self._start()
            if start > self._position:
                self._lost(start, "expired before it was read")
                return
            # Above the end: this node is behind the one that told of the messages, or they are gone for good.
            raise _TryAgain(f"has nothing up to offset {self._position}: {text}")
        if code in ("topic_not_found", "partition_not_found"):
            raise _NoTopic(f"says {code}: {text}")
        if is_passing(status, code):
            raise _TryAgain(f"says {code}: {text}")
        raise RemoteError(code, f"[{code}] {self._broker.address}: {text}", status)

    def _start(self) -> int:
        """The oldest offset of the partition."""
        answer = self._ask(f"/v1/topics/{quote(self._wanted.topic, safe='')}")
        if answer.status != 200:
            raise _TryAgain(f"says {refusal(answer.body, answer.status)['code']}")
        try:
            described = json.loads(answer.body)
            created_ms = int(described["created_ms"])
            start = int(described["partitions"][self._wanted.partition]["start_offset"])
        except (ValueError, LookupError, TypeError):
            raise _TryAgain(f"does not describe its topic: {bytes(answer.body[:200])!r}") from None
        self._check_topic(created_ms)
        return start

    def _lost(self, until: int, why: str) -> None:
        until = min(until, self._wanted.end)
        text = (
            f"{self._wanted.topic}/{self._wanted.partition}: what was at offsets {self._position} to {until - 1} {why}"
        )
        if self._source.fail_on_data_loss:
            raise data_lost(text) from None
        _log.warning("%s; going on behind it", text)
        self._position = until


def data_lost(text: str) -> HoldfastError:
    return with_code(DataLost, f"{text}; with the option failOnDataLoss=false a query goes on without it")
