"""Crash injection: a process that dies before a chosen call, or right after it, and never runs again."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn, TypeVar
from unittest import mock

R = TypeVar("R")


class Crashed(BaseException):
    """The process is dead or the power is gone. No error handler may catch this."""


class CrashPoint:
    """Counts the moments at which a process may die, and dies at one of them; with `None` it never dies."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0

    @property
    def is_reached(self) -> bool:
        return self.count == self.at

    def pass_by(self) -> None:
        """One such moment. Raises `Crashed` at the chosen one and at every later one."""
        if self.is_reached:
            raise Crashed
        self.count += 1

    def before(self, function: Callable[..., R]) -> Callable[..., R]:
        """The function, with such a moment before each call."""

        def call(*given: Any, **named: Any) -> R:
            self.pass_by()
            return function(*given, **named)

        return call

    @contextlib.contextmanager
    def before_calls_of(self, *functions: tuple[object, str]) -> Iterator[None]:
        """Put such a moment before each call of these functions, each given as its owner and its name."""
        with contextlib.ExitStack() as patches:
            for owner, name in functions:
                patches.enter_context(mock.patch.object(owner, name, self.before(getattr(owner, name))))
            yield


class DyingProxy:
    """Passes calls on to an object until the process dies: before one of these calls, or when that call is done.

    Whoever waits for a call of a dead process gets `Crashed`; `died` is set for those that wait for nothing else.
    """

    def __init__(self, target: object, calls: Collection[str]) -> None:
        self._target = target
        self._calls = calls
        self._point = CrashPoint()
        self._dies_after = False
        self.died = asyncio.Event()

    @property
    def is_dead(self) -> bool:
        return self.died.is_set()

    @property
    def will_die(self) -> bool:
        return self._point.at is not None

    def die_at(self, calls: int, *, after: bool) -> None:
        """Die so many calls from now."""
        self._point, self._dies_after = CrashPoint(calls), after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._target, name)
        return self._dying(real) if name in self._calls else real

    def _dying(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            was_dead = self.is_dead
            try:
                self._point.pass_by()
            except Crashed:
                self.died.set()
                if was_dead or not self._dies_after:
                    return _crashed() if inspect.iscoroutinefunction(real) else _crash()
                return _unheard(real(*given, **named))
            return real(*given, **named)

        return call


def _crash() -> NoReturn:
    raise Crashed


async def _crashed() -> None:
    raise Crashed


def _unheard(answer: Any) -> Any:
    """The call is done, and no process is left to hear of it."""
    if not inspect.isawaitable(answer):
        raise Crashed

    async def ignored() -> None:
        await answer
        raise Crashed

    return asyncio.ensure_future(ignored())
