"""A proxy as a process: its event loop, its signals, what it says when it starts, how it leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.frontends.http.connection import Bounds
from holdfast.frontends.http.listening import Application, Listening
from holdfast.frontends.http.origin import OriginRule
from holdfast.frontends.http.short_way import ShortWay
from holdfast.model.limits import CONNECTIONS_MAX
from holdfast.proxy.app import Proxy
from holdfast.proxy.groups import Group
from holdfast.proxy.settings import Settings

log = structlog.get_logger("holdfast.proxy")

_DRAIN_S: Final = 5.0


class RunningProxy:
    """A proxy in the caller's event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        counts: Counter[str] = Counter()
        self.groups = [Group(group, settings, counts) for group in settings.groups]
        self.proxy = Proxy(self.groups, counts, log.warning)
        self._listening = Listening(self._served, log=log.error, bounds=Bounds(connections_max=CONNECTIONS_MAX))
        self.proxy.connections = lambda: self._listening.connections

    def _served(self, origin: OriginRule) -> tuple[Application, ShortWay]:
        return self.proxy.app(origin), ShortWay(self.proxy, self.proxy.short_calls(), origin)

    async def start(self) -> tuple[str, int]:
        for group in self.groups:
            group.start(log.warning)
        return await self._listening.start(self._settings.listen.host, self._settings.listen.port)

    async def stop(self) -> None:
        await self._listening.stop(_DRAIN_S)
        for group in self.groups:
            await group.stop()


def run(settings: Settings, ready_file: Path | None, *, quiet: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, ready_file, quiet=quiet))
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    return 0


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if os.environ.get("HOLDFAST_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(settings: Settings, ready_file: Path | None, *, quiet: bool) -> None:
    stopping = asyncio.Event()
    running = RunningProxy(settings)
    host, port = await running.start()
    address = f"{host}:{port}"
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if ready_file is not None:
        temporary = ready_file.with_name(ready_file.name + ".tmp")
        temporary.write_bytes(msgspec.json.encode({"pid": os.getpid(), "http": address}) + b"\n")
        temporary.replace(ready_file)
    if not quiet:
        names = ", ".join(f"{group.name} ({len(group.nodes)})" for group in running.groups)
        print(f"Holdfast proxy at http://{address} before {names}\nCtrl-C stops it.", flush=True)
    await stopping.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 1)
    await running.stop()
