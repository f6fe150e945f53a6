"""One that was replaced gives what only it has to the other, then begins anew. As `node.rejoining`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.entries import KIND_BATCH
from simulation.disk import Store
from simulation.pair_replica import CONTROL, GIVER, made_id
from simulation.requests import Answer, Ask, Request
from simulation.state import Batch

if TYPE_CHECKING:
    from simulation.pair_node import PairNode

_TIMEOUT_MS: Final = 400.0
_AGAIN_MS: Final = 200.0


class Giver:
    """Asks the other one to store message after message, each under an id."""

    def __init__(self, node: PairNode) -> None:
        self._node = node
        self.is_busy = False
        self._waiting: list[Request] = []
        self._operation = 0
        self._deadline_ms = 0.0

    def begin(self) -> None:
        self.is_busy = True
        self._deadline_ms = self._node.world.now_ms + self._node.settings.patience_s * 1000
        if self._node.is_given:
            self._anew_soon()
            return
        self._waiting = self._messages()
        self._give(self._operation)

    def stop(self) -> None:
        self.is_busy = False
        self._operation += 1

    def _messages(self) -> list[Request]:
        found = []
        for group, store in sorted(self._node.stores.items()):
            if group == CONTROL:
                continue
            first = self._first_of_its_own(store, self._node.other.stores.get(group))
            for index in range(max(first, store.log.base_index + 1), store.log.last_index + 1):
                entry = store.log.at(index)
                if entry.kind == KIND_BATCH:
                    batch = Batch.decode(entry.payload)
                    message_id = batch.message_id or made_id(group, entry)
                    found.append(Request(GIVER + self._node.number, 0, Ask.PUBLISH, group, batch.name, message_id, 1))
        return found

    def _first_of_its_own(self, store: Store, others: Store | None) -> int:
        """The first entry that the other one does not have: entries of equal term and place are the same.

        It stands before the one that says that this node is alone: what was under way to the other one then was
        never there, and is acknowledged all the same.
        """
        index = store.log.base_index + 1
        if others is None:
            return index
        while index <= min(store.log.last_index, others.log.last_index):
            if store.log.at(index).term != others.log.at(index).term:
                break
            index += 1
        return index

    def _ids_of_the_other(self) -> set[tuple[int, str]]:
        """What it shows: as `node.rejoining` reads it."""
        found = set()
        for group, replica in self._node.other.replicas.items():
            shown = replica.applied - replica.store.log.base_index
            for entry in replica.store.log.entries[:shown] if group != CONTROL else ():
                if entry.kind == KIND_BATCH:
                    found.add((group, Batch.decode(entry.payload).message_id or made_id(group, entry)))
        return found

    # --- giving -------------------------------------------------------------------------------------

    def _give(self, operation: int) -> None:
        node = self._node
        if operation != self._operation or not self.is_busy or node.postpone(self._give, operation):
            return
        can_ask = node.wire.can_shake_hands()
        if can_ask:
            theirs = self._ids_of_the_other()
            self._waiting = [each for each in self._waiting if (each.group, each.message_id) not in theirs]
        if not self._waiting:
            node.is_given = True
            node.world.counts["gave everything"] += 1
            self._anew_soon()
            return
        self._operation += 1
        node.reached("giving")
        node.world.after(_TIMEOUT_MS, self._failed, self._operation)
        if can_ask:
            request = self._waiting[0]._replace(operation=self._operation)
            if node.world.is_traced:
                node.world.note(f"n{node.number} gives {request}")
            node.world.after(node.wire.delay(), node.other.request, request)

    def answered(self, answer: Answer) -> None:
        if not self.is_busy or answer.operation != self._operation:
            return
        if not answer.is_done:
            self._failed(self._operation)
            return
        del self._waiting[0]
        self._node.world.counts["messages given"] += 1
        self._give(self._operation)

    def _failed(self, operation: int) -> None:
        """Again, after a while, from what the other one has by then."""
        node = self._node
        if operation != self._operation or not self.is_busy or node.is_given:
            return
        if node.postpone(self._failed, operation):
            return
        self._operation += 1
        if node.world.now_ms > self._deadline_ms:
            self.is_busy = False
            node.go_on_as_before()
            return
        self._waiting = self._messages()
        node.world.after(_AGAIN_MS, self._give, self._operation)

    def _anew_soon(self) -> None:
        self._operation += 1
        self._node.world.after(self._node.world.dice.random() * 30.0, self._anew, self._operation)

    def _anew(self, operation: int) -> None:
        node = self._node
        if operation == self._operation and self.is_busy and not node.postpone(self._anew, operation):
            self.is_busy = False
            node.begin_anew()
