"""Who publishes and reads: one thing at a time each, through any node, and again where no answer comes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simulation.requests import Answer, Ask, Request
from simulation.state import CONTROL_GROUP

if TYPE_CHECKING:
    from simulation.cluster import Cluster

ATTEMPTS_MAX = 6


class Client:
    """`number` names it; its cursor is named after it too."""

    def __init__(self, number: int, cluster: Cluster, groups: list[int], pause_ms: float) -> None:
        self.number = number
        self._cluster = cluster
        self._world = cluster.world
        self._checker = cluster.checker
        self._groups = groups
        self._pause_ms = pause_ms
        self._operation = 0
        self._attempt = 0
        self._request: Request | None = None
        # What had been seen when the request was made.
        self._seen = 0
        self._position = 0
        self._ids: Counter[int] = Counter()
        self.is_stopped = False

    def unanswered(self) -> str | None:
        """What it still waits for."""
        return str(self._request) if self._request is not None else None

    def begin(self) -> None:
        self._world.after(self._world.dice.random() * self._pause_ms, self._think)

    def _think(self) -> None:
        if self.is_stopped or self._request is not None:
            return
        dice = self._world.dice
        choice = dice.random()
        group = dice.choice(self._groups)
        if choice < 0.5:
            self.publish(group, has_id=choice < 0.36)
        elif choice < 0.76:
            self._ask(Request(self.number, self._operation, Ask.READ, group, ""), self._checker.visible[group])
        elif choice < 0.82:
            self._ask(Request(self.number, self._operation, Ask.READ_NEARBY, group, ""), 0)
        else:
            self._use_cursor(is_read=choice > 0.92)

    def publish(self, group: int, *, has_id: bool) -> None:
        name = f"c{self.number}-{self._operation}"
        request = Request(
            self.number,
            self._operation,
            Ask.PUBLISH,
            group,
            name,
            self._new_id(group) if has_id else "",
            self._world.dice.choice((1, 1, 3)),
        )
        self._checker.asked(request)
        self._ask(request, 0)

    def _new_id(self, group: int) -> str:
        """A partition has its own window, so another one may know the same id for another message."""
        self._ids[group] += 1
        return f"c{self.number}-{self._ids[group]}"

    def _use_cursor(self, *, is_read: bool) -> None:
        cursor = f"cursor{self.number}"
        if is_read:
            seen = self._checker.cursors.get(cursor, 0)
            self._ask(Request(self.number, self._operation, Ask.READ_CURSOR, CONTROL_GROUP, cursor), seen)
            return
        # Now and then somebody repeats what is long out of date.
        is_old = self._world.chance(0.3)
        position = self._world.dice.randint(0, self._position) if is_old else self._position + 1
        self._position = max(self._position, position)
        self._checker.asked_cursor(cursor, position)
        self._ask(Request(self.number, self._operation, Ask.MOVE_CURSOR, CONTROL_GROUP, cursor, "", position), 0)

    def _ask(self, request: Request, seen: int) -> None:
        self._request, self._seen, self._attempt = request, seen, 0
        self._try()

    def _try(self) -> None:
        assert self._request is not None
        self._attempt += 1
        self._world.counts["requests"] += 1
        node = self._world.dice.choice(self._cluster.nodes)
        if self._world.is_traced:
            self._world.note(f"client {self.number} asks n{node.number}: {self._request}")
        self._world.after(0.2, node.request, self._request)
        timeout_ms = 60.0 + self._world.dice.random() * 200.0
        self._world.after(timeout_ms, self._timed_out, self._operation, self._attempt)

    def _timed_out(self, operation: int, attempt: int) -> None:
        if self._request is None or (operation, attempt) != (self._operation, self._attempt):
            return
        is_repeatable = self._request.ask is not Ask.PUBLISH or self._request.message_id
        if not is_repeatable or (self._attempt >= ATTEMPTS_MAX and not self._cluster.is_calm):
            self._finish()  # nobody knows what became of it
        else:
            self._try()

    def answered(self, answer: Answer) -> None:
        if self._request is None or answer.operation != self._operation:
            return
        if not answer.is_done:
            self._attempt += 1
            self._world.after(self._world.dice.random() * 30.0, self._timed_out, self._operation, self._attempt)
            return
        if self._world.is_traced:
            self._world.note(f"client {self.number} is told {answer}")
        request = self._request
        match request.ask:
            case Ask.PUBLISH:
                self._checker.acknowledged(request, answer)
            case Ask.READ | Ask.READ_NEARBY:
                self._checker.read(request, answer, self._seen)
            case Ask.MOVE_CURSOR:
                self._checker.cursor_moved(request.name, request.number)
            case Ask.READ_CURSOR:
                self._checker.cursor_read(request.name, answer.value, self._seen)
        self._finish()

    def _finish(self) -> None:
        self._request = None
        self._operation += 1
        if not self.is_stopped:
            self._world.after(self._world.dice.random() * self._pause_ms, self._think)
