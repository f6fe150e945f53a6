"""Publishes of every kind, what each publisher is told, and whether that is true of the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

from holdfast.broker.broker import Broker
from holdfast.broker.publishing import PushedPart
from holdfast.model.errors import OUTCOMES, HoldfastError, NotStored, Refused, RemoteError
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder
from holdfast.wire.push_batch import Pushed

PARTITIONS = 2
# So many of these fill a segment of 4 KiB.
LARGE = b"x" * 1500
# These go to one partition each.
KEYS = (b"d", b"a")


class Request(NamedTuple):
    kind: str
    values: list[bytes]
    send: Callable[[Broker, str], Awaitable[object]]


class Told(NamedTuple):
    """What the publisher of some values was told; no error is an acknowledgement."""

    kind: str
    values: list[bytes]
    error: BaseException | None


def requests(round_name: str) -> list[Request]:
    """One of each kind; every value is sent once."""

    def value(text: str) -> bytes:
        return f"{round_name} {text} ".encode()

    def batch(names: Sequence[str], *, ids: bool = False) -> bytearray:
        messages = [NewMessage(value=value(each) + LARGE, id=f"{round_name} {each}" if ids else None) for each in names]
        return batch_builder.build_batch(messages, 1_790_000_000_000)

    plain, keyed = [value(f"plain {i}") for i in range(3)], [value(f"keyed {i}") for i in range(2)]
    named = value("named")
    mixed = [value("mixed with id"), value("mixed without")]
    pushed = [value(f"pushed {i}") for i in range(4)]
    names = [key.decode() for key in KEYS] * 2
    push_ids = [str(uuid5(NAMESPACE_OID, f"{round_name} {i}")) for i in range(4)]
    batches = [[f"batch {i} {j}" for j in range(2)] for i in range(3)]
    with_ids = [[f"id batch {i}"] for i in range(2)]
    whole = [value(each) + LARGE for names_of_one in batches for each in names_of_one]
    whole_with_ids = [value(each) + LARGE for names_of_one in with_ids for each in names_of_one]
    again = NewMessage(value=named, id=f"{round_name} named")

    def send_plain(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish_values(topic, plain).offset

    def send_keyed(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish(topic, [NewMessage(value=each, key=key) for each, key in zip(keyed, KEYS, strict=True)])

    def send_named(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish(topic, [again, again], 0)

    def send_mixed(broker: Broker, topic: str) -> Awaitable[object]:
        messages = [NewMessage(value=mixed[0], id=f"{round_name} mixed"), NewMessage(value=mixed[1])]
        return broker.publish(topic, messages, 1)

    def send_batches(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish_batches(topic, 0, [batch(each) for each in batches])

    def send_with_ids(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish_batches(topic, 1, [batch(each, ids=True) for each in with_ids])

    def send_pushed(broker: Broker, topic: str) -> Awaitable[object]:
        return broker.publish_pushed(topic, Pushed(names, pushed, push_ids, push_ids, [None] * 4))

    return [
        Request("plain", plain, send_plain),
        Request("keyed", keyed, send_keyed),
        Request("named", [named], send_named),
        Request("mixed", mixed, send_mixed),
        Request("batches", whole, send_batches),
        Request("batches with ids", whole_with_ids, send_with_ids),
        Request("pushed", pushed, send_pushed),
    ]


class Sent:
    """Requests that were sent together."""

    def __init__(self, brokers: Sequence[Broker], topic: str, asked: Sequence[Request]) -> None:
        self._told: list[Told] = []
        self._open: list[tuple[Request, asyncio.Future[object]]] = []
        for number, request in enumerate(asked):
            try:
                answer = request.send(brokers[number % len(brokers)], topic)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the publisher is told
                self._told.append(Told(request.kind, request.values, error))
            else:
                self._open.append((request, asyncio.ensure_future(answer)))

    async def answered(self, patience_s: float | None = None) -> None:
        """Until all have their answer. What a fault left waiting is answered when the store stops."""
        if self._open:
            await asyncio.wait([answer for _, answer in self._open], timeout=patience_s)

    def told(self) -> list[Told]:
        found = list(self._told)
        for request, answer in self._open:
            error = asyncio.CancelledError() if not answer.done() or answer.cancelled() else answer.exception()
            if error is None and request.kind == "pushed":
                parts: list[PushedPart] = answer.result()  # type: ignore[assignment]
                for places, fate in parts:
                    values = [request.values[place] for place in places]
                    found.append(Told(request.kind, values, fate if isinstance(fate, BaseException) else None))
            else:
                found.append(Told(request.kind, request.values, error))
        return found


def untrue(told: Sequence[Told], stored: Counter[bytes]) -> list[str]:
    """What the publishers were told and the log does not bear out."""
    found = []
    for kind, values, error in told:
        counts = [stored[value] for value in values]
        if error is None and counts != [1] * len(values):
            found.append(f"{kind}: acknowledged, and stored {counts} times")
        elif isinstance(error, Refused | NotStored) and any(counts):
            found.append(f"{kind}: {error.code} ({error.message}), and stored {counts} times")
        elif max(counts) > 1:
            found.append(f"{kind}: {error!r}, and stored {counts} times")
        if isinstance(error, HoldfastError):
            # What a client makes of it, which sees the code and the status.
            seen = RemoteError(error.code, error.message, error.http_status)
            if any(isinstance(error, base) is not isinstance(seen, base) for base in OUTCOMES):
                found.append(f"{kind}: {error.code} means something else to a client")
    return found
