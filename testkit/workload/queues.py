"""The load of numbered queues: writers append with ids, many clients each read a queue of their own accord.

Every client is handed every acknowledged value once, in one and the same order. A call of which nobody knows what
became of it is made again with its id, through another node. Two readers who share a client id share its messages.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final

from holdfast.testing.node_process import Setting
from testkit.asking import Refused, request
from testkit.cluster import BreakableCluster
from testkit.history import History, Place

_QUEUES: Final = 3
_CLIENTS_OF_EACH: Final = 4
# Pauses between two appends to one queue, and between two reads of one client that found nothing.
_APPEND_S: Final = 0.2
_EMPTY_S: Final = 0.2
_AGAIN_S: Final = 0.1
_CALL_S: Final = 8.0
_STOP_S: Final = 40.0
_VALUES_OF_EACH_MAX: Final = 1_000_000_000


class Client:
    """Somebody with a client id, or one of two who share it: what it was handed, in order."""

    def __init__(self, queue: int, client_id: str, reader: str) -> None:
        self.queue = queue
        self.client_id = client_id
        self.reader = reader
        self.got: list[tuple[int, int]] = []
        self.is_at_the_end = False
        self.requests = 0


class Queues:
    """Follows `Workload`."""

    name: ClassVar[str] = "numbered queues"
    settings: ClassVar[Mapping[str, Setting]] = {}

    def __init__(self, cluster: BreakableCluster, history: History, seed: str, rate: float) -> None:
        self._cluster = cluster
        self._history = history
        self._seed = seed
        self.queues: list[int] = []
        # By queue: what was begun to be appended, and which message it became.
        self.begun: dict[int, int] = {}
        self.appended: dict[int, dict[int, int]] = {}
        self.clients: list[Client] = []
        self._errors: dict[str, int] = {}
        self._writing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self._stopping_writes = self._stopping_reads = False
        self._pool = ThreadPoolExecutor(_QUEUES * (_CLIENTS_OF_EACH + 3), thread_name_prefix="chaos-queues")

    async def start(self) -> None:
        dice = random.Random(f"{self._seed}/queues")
        for number in range(_QUEUES):
            made = await self._call(dice, "/create_queue", {"request_id": f"chaos:{number}"})
            queue = int(made["queue_id"])
            self.queues.append(queue)
            self._history.foreign_topics.add(f"queue-{queue}")
            self.begun[queue], self.appended[queue] = 0, {}
            for index in range(_CLIENTS_OF_EACH):
                self.clients.append(Client(queue, f"client{index}", f"q{queue}-client{index}"))
            self.clients += [Client(queue, "shared", f"q{queue}-shared{index}") for index in range(2)]
        self._writing = [asyncio.create_task(self._write(queue)) for queue in self.queues]
        self._reading = [asyncio.create_task(self._read(client)) for client in self.clients]

    async def _write(self, queue: int) -> None:
        dice = random.Random(f"{self._seed}/write/{queue}")
        while not self._stopping_writes:
            number = self.begun[queue]
            self.begun[queue] += 1
            body = {"queue_id": queue, "value": _value(queue, number), "id": f"chaos-{number}"}
            answer = await self._call(dice, "/append", body, lambda: self._stopping_writes)
            if answer is not None:
                self.appended[queue][number] = int(answer["message_id"])
            await asyncio.sleep(_APPEND_S)

    async def _read(self, client: Client) -> None:
        dice = random.Random(f"{self._seed}/read/{client.reader}")
        while not self._stopping_reads:
            client.requests += 1
            wanted = {
                "queue_id": client.queue,
                "client_id": client.client_id,
                "request_id": f"{client.reader}:{client.requests}",
            }
            answer = await self._call(dice, "/read", wanted, lambda: self._stopping_reads)
            if answer is None:
                return
            client.is_at_the_end = answer["message_id"] is None
            if client.is_at_the_end:
                await asyncio.sleep(_EMPTY_S)
            else:
                client.got.append((int(answer["message_id"]), int(answer["value"])))

    async def _call(
        self, dice: random.Random, path: str, body: dict[str, Any], may_stop: Callable[[], bool] = lambda: False
    ) -> Any:
        """Through any node, again and again until there is an answer; `None` where it is time to stop."""
        loop = asyncio.get_running_loop()
        while True:
            node = dice.choice(self._cluster.nodes)
            try:
                reply = await loop.run_in_executor(
                    self._pool,
                    lambda node=node: request(node.http, "POST", path, body, timeout_s=_CALL_S),  # type: ignore[misc]
                )
                return reply.json()
            except Refused as error:
                self._errors[error.code] = self._errors.get(error.code, 0) + 1
                if may_stop():
                    return None
                await asyncio.sleep(_AGAIN_S)

    # --- how far it is --------------------------------------------------------------------------------

    def places(self) -> list[Place]:
        return [Place(f"queue-{queue}", 0) for queue in self.queues]

    def progress(self) -> int:
        return sum(len(appended) for appended in self.appended.values())

    def begin_waiting(self) -> Callable[[], bool]:
        before = self._counts()
        return lambda: all(count > before.get(name, 0) for name, count in self._counts().items())

    def _counts(self) -> dict[str, int]:
        """Of two that share a client id one may get everything."""
        counts = {f"queue {queue}": len(appended) for queue, appended in self.appended.items()}
        for client in self.clients:
            name = f"{client.client_id} of {client.queue}"
            counts[name] = counts.get(name, 0) + len(client.got)
        return counts

    def totals(self) -> Mapping[str, int]:
        return {"appended to queues": self.progress(), "read from queues": sum(len(one.got) for one in self.clients)}

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        return {"queues": self._errors} if self._errors else {}

    # --- what must hold -------------------------------------------------------------------------------

    def checks(self) -> Mapping[str, Iterator[str]]:
        return {
            "queue: appended and not handed out": self._lost(),
            "queue: handed out twice": self._twice(),
            "queue: handed out in another order": self._disorder(),
            "queue: never appended": self._unknown(),
            "did not go on": self._ended_by_themselves(),
        }

    def _by_client(self) -> Iterator[tuple[int, str, list[list[tuple[int, int]]]]]:
        """What was handed out for each queue and client id, by reader."""
        for queue in self.queues:
            for client_id in dict.fromkeys(one.client_id for one in self.clients):
                lists = [one.got for one in self.clients if (one.queue, one.client_id) == (queue, client_id)]
                yield queue, client_id, lists

    def _lost(self) -> Iterator[str]:
        for queue, client_id, lists in self._by_client():
            handed_out = {pair for got in lists for pair in got}
            for number, message_id in self.appended[queue].items():
                if (message_id, _value(queue, number)) not in handed_out:
                    yield f"queue {queue}: {client_id} never got message {message_id}, value {_value(queue, number)}"

    def _twice(self) -> Iterator[str]:
        for queue, client_id, lists in self._by_client():
            seen: set[int] = set()
            for _, value in (pair for got in lists for pair in got):
                if value in seen:
                    yield f"queue {queue}: {client_id} got the value {value} twice"
                seen.add(value)

    def _disorder(self) -> Iterator[str]:
        """Messages come by their numbers; a number is one value, whoever reads it."""
        values: dict[tuple[int, int], int] = {}
        for queue, client_id, lists in self._by_client():
            for got in lists:
                last = 0
                for message_id, value in got:
                    if message_id <= last:
                        yield f"queue {queue}: {client_id} got message {message_id} after {last}"
                    last = message_id
                    if values.setdefault((queue, message_id), value) != value:
                        yield f"queue {queue}: message {message_id} is {value} to {client_id}, else another value"

    def _unknown(self) -> Iterator[str]:
        for queue, client_id, lists in self._by_client():
            for message_id, value in (pair for got in lists for pair in got):
                if not 0 <= value - _value(queue, 0) < self.begun[queue]:
                    yield f"queue {queue}: {client_id} got message {message_id}, value {value}, which nobody appended"

    def _ended_by_themselves(self) -> Iterator[str]:
        for task in (*self._writing, *self._reading):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                yield f"a client of queues ended by itself: {error!r}"

    # --- the end --------------------------------------------------------------------------------------

    async def stop_sending(self) -> None:
        self._stopping_writes = True
        if self._writing:
            await asyncio.wait(self._writing, timeout=_STOP_S)

    async def read_to_the_end(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        for client in self.clients:
            client.is_at_the_end = False
        deadline = time.monotonic() + timeout_s
        while behind := [one.reader for one in self.clients if not one.is_at_the_end]:
            if time.monotonic() > deadline:
                return [f"{reader} has not come to the end of its queue" for reader in behind]
            await asyncio.sleep(0.1)
        return []

    async def stop(self) -> None:
        await self.stop_sending()
        self._stopping_reads = True
        tasks = [*self._writing, *self._reading]
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        for task in tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(cancel_futures=True)


def _value(queue: int, number: int) -> int:
    return queue * _VALUES_OF_EACH_MAX + number
