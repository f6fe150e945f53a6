"""An event loop in a thread of its own, so that code without a loop, or inside another one, can use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.client.errors import ClientClosed

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self) -> None:
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # A daemon: a script that forgets to close its client still ends.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="holdfast-client", daemon=True)
        self._thread.start()
        self._loop, self._stop = self._started.result()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupt of the waiting thread (Ctrl-C) cancels it."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """The same without waiting."""
        if not self.is_running:
            work.close()
            raise ClientClosed("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the loop and what still runs on it."""
        if self.is_running:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _main(self) -> None:
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
