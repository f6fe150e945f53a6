"""Groups of nodes: who of them is well, and calls that are tried until one of them answers.

Only calls that may arrive twice go through `Group.call`: whoever calls has put an id into them. Any node of a group
takes everything and passes on what another one leads, so all that are well take turns. One that does not answer, or
says that it cannot now, is passed over for the next one, until patience ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.model.errors import HoldfastError, NoGroupAnswers, Overloaded
from holdfast.proxy.nodes import Node
from holdfast.proxy.pool import PoolFull
from holdfast.proxy.settings import GroupSettings, Settings
from holdfast.proxy.upstream import Answer, NodeFailed

_PAUSE_S: Final = 0.03
_UNAVAILABLE: Final = 503


class _Info(msgspec.Struct):
    is_leader: bool
    has_quorum: bool


_decode_info: Final = msgspec.json.Decoder(_Info).decode


class Group:
    """One cluster behind the proxy."""

    def __init__(self, settings: GroupSettings, proxy: Settings, counts: Counter[str]) -> None:
        self.name = settings.name
        self.slot = settings.slot
        self.weight = settings.weight
        self.patience_s = proxy.patience_s
        self.attempt_s = proxy.attempt_s
        self.nodes = [Node(address, proxy) for address in settings.nodes]
        self._check_s = proxy.check_s
        self._counts = counts
        self._turn = 0
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return any(node.is_up for node in self.nodes)

    def in_turn(self) -> list[Node]:
        """All nodes, those that are well first, each time another one of them."""
        self._turn += 1
        count = len(self.nodes)
        rotated = [self.nodes[(self._turn + place) % count] for place in range(count)]
        return sorted(rotated, key=lambda node: not node.is_up) if count > 1 else rotated

    def begin(self, path: bytes, body: bytes) -> asyncio.Future[Answer]:
        """As `call`. Where a connection is there, the request leaves at once, and without a task if all goes well."""
        loop = asyncio.get_running_loop()
        node = self.in_turn()[0]
        connection = node.calls.take_idle() if node.is_up else None
        if connection is None:
            return loop.create_task(self.call(path, body))
        result: asyncio.Future[Answer] = loop.create_future()
        timer = loop.call_later(self.attempt_s, connection.time_out)

        def answered(answer: Answer | NodeFailed) -> None:
            timer.cancel()
            node.calls.give_back(connection)
            if result.done():
                return
            if isinstance(answer, Answer) and answer.status != _UNAVAILABLE:
                result.set_result(answer)
                return
            self._counts["retries"] += 1
            trying = loop.create_task(self.call(path, body))
            trying.add_done_callback(lambda done: _pass_on(done, result))

        connection.ask(node.post(path, body), answered)
        return result

    async def call(self, path: bytes, body: bytes, patience_s: float | None = None) -> Answer:
        """Have a node do it; sent again where nobody knows. Raises `NoGroupAnswers`, `Overloaded`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self.patience_s if patience_s is None else patience_s)
        refusal: Answer | None = None
        while True:
            failures: list[NodeFailed] = []
            for node in self.in_turn():
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    break
                try:
                    answer = await node.exchange(node.post(path, body), min(self.attempt_s, left_s))
                except NodeFailed as error:
                    self._counts["retries"] += 1
                    failures.append(error)
                    continue
                if answer.status != _UNAVAILABLE:
                    return answer
                refusal = answer
                self._counts["retries"] += 1
            if loop.time() + _PAUSE_S >= deadline_s:
                if refusal is not None:
                    return refusal
                raise self.silent(failures)
            await asyncio.sleep(_PAUSE_S)

    async def ask(self, target: bytes) -> Answer:
        """A small GET, of whichever node answers. Raises `NoGroupAnswers`, `Overloaded`."""
        failures: list[NodeFailed] = []
        for node in self.in_turn():
            try:
                answer = await node.exchange(node.get(target), self.attempt_s)
            except NodeFailed as error:
                failures.append(error)
                continue
            if answer.status != _UNAVAILABLE:
                return answer
        raise self.silent(failures)

    def silent(self, failures: Sequence[NodeFailed] = ()) -> HoldfastError:
        """What to say where none of the nodes has answered."""
        if failures and all(isinstance(each, PoolFull) for each in failures):
            return Overloaded(f"group {self.name} has as many requests as a proxy gives it; try again in a moment")
        problems = "; ".join(f"{node.address}: {node.problem or 'no answer'}" for node in self.nodes)
        return NoGroupAnswers(f"no node of group {self.name} answers ({problems}); try again when one is back")

    # --- whether they are well ------------------------------------------------------------------------

    def start(self, log: Callable[..., None]) -> None:
        self._checking = asyncio.get_running_loop().create_task(self._check_on(log))

    async def stop(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        for node in self.nodes:
            node.close()

    async def _check_on(self, log: Callable[..., None]) -> None:
        while True:
            await asyncio.gather(*(self._check(node, log) for node in self.nodes))
            await asyncio.sleep(self._check_s)

    async def _check(self, node: Node, log: Callable[..., None]) -> None:
        was_up = node.is_up
        try:
            request = node.post(b"/broker_info", b"{}")
            info = _decode_info((await node.exchange(request, self.attempt_s, node.checks)).body)
            node.is_up, node.is_leader = info.has_quorum, info.is_leader
            node.problem = "" if info.has_quorum else "it has no majority"
        except Exception as error:  # noqa: BLE001 - whoever looks after the nodes must not end
            node.is_up = node.is_leader = False
            node.problem = str(error)
            if not isinstance(error, (NodeFailed, msgspec.MsgspecError)):
                log("check_failed", group=self.name, node=str(node.address), error=repr(error))
        if was_up != node.is_up:
            log("node_up" if node.is_up else "node_down", group=self.name, node=str(node.address), why=node.problem)


def _pass_on(done: asyncio.Task[Answer], result: asyncio.Future[Answer]) -> None:
    if result.done():
        return
    if done.cancelled():
        result.cancel()
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


def heaviest(groups: Sequence[Group], topic: str) -> Group:
    """The group that a new topic goes to; of several that have one, the one that counts."""
    return max(groups, key=lambda group: group.weight(topic))
