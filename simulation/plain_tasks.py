"""What takes time in one process: generators that yield the milliseconds they wait, and end with it."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.world import World


class Task:
    def __init__(self) -> None:
        self.is_done = False
        self.is_cancelled = False


class Tasks:
    """The tasks of one life."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_ended = False

    def spawn(self, work: Iterator[float]) -> Task:
        task = Task()
        self._step(task, work)
        return task

    def end(self) -> None:
        self._is_ended = True

    def _step(self, task: Task, work: Iterator[float]) -> None:
        if self._is_ended or task.is_cancelled:
            task.is_done = True
            return
        try:
            delay_ms = next(work)
        except StopIteration:
            task.is_done = True
            return
        self._world.after(delay_ms, self._step, task, work)
