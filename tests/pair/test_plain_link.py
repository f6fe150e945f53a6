"""The connection to a partner is dropped and dialled again without harm, on either kind of loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest
import uvloop

from holdfast.backends.plain.link import Link, Snapshot
from holdfast.consensus.partner import PairSettings
from holdfast.consensus.plain_standing import Standing


class Listener:
    def __init__(self) -> None:
        self.beats = 0
        self.lines: list[bytes] = []
        self.problems: list[RuntimeError] = []
        self.link: Link

    def greeting(self) -> bytes:
        return b""

    def on_lines(self, lines: Sequence[bytes]) -> None:
        self.lines += lines
        if b"ERROR|no" in lines:
            # What a primary does with a backup that refuses, while more is to be said.
            self.link.drop()
            self._go_on(5)

    def _go_on(self, turns: int) -> None:
        try:
            self.link.write(b"more\n")
            self.link.beat()
        except RuntimeError as error:
            self.problems.append(error)
        if turns:
            asyncio.get_running_loop().call_soon(self._go_on, turns - 1)

    def on_beat(self, standing: Standing | None, before: Snapshot) -> None:
        self.beats += 1

    def on_silent(self, before: Snapshot | None) -> None: ...
    def on_down(self) -> None: ...
    def on_gone(self, why: str) -> None: ...
    def on_back(self) -> None: ...
    def on_look(self, now_s: float) -> None: ...


async def _drop_again_and_again(times: int) -> Listener:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line == b"HEARTBEAT\n":
                    writer.write(b"HEARTBEAT_ACK\nERROR|no\nERROR|after the drop\n")
            writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    listener = Listener()
    settings = PairSettings(heartbeat_s=0.02, misses=3)
    address = server.sockets[0].getsockname()[:2]
    listener.link = Link(address, b"HEARTBEAT\n", settings, listener, lambda: Snapshot(0, 0))
    tasks = [asyncio.ensure_future(each) for each in (listener.link.dial_on(), listener.link.beat_on())]
    async with asyncio.timeout(20):
        while listener.beats < times:
            await asyncio.sleep(0.005)
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.close()
    return listener


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_is_said_to_a_dropped_connection_is_lost_and_nothing_else(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        listener = runner.run(_drop_again_and_again(4))
    assert b"ERROR|no" in listener.lines and listener.problems == []
