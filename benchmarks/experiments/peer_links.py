"""What a link between two nodes carries: entries of 1 KiB, and of 64 KiB, from one process to another.

Run: `python -m benchmarks.experiments.peer_links [asyncio]`

The sender keeps what a leader may have under way to a follower (16 MiB, 256 messages); the receiver answers each
Append as a follower would, and touches nothing else. Processor time is given for both, since it says more than the
rate where a machine has other things to do.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from holdfast.backends.cluster.links import PeerLinks
from holdfast.consensus.messages import Append, AppendReply, Message
from holdfast.consensus.progress import INFLIGHT_BYTES_MAX
from holdfast.model.entries import Entry
from holdfast.model.ids import LogIndex, Term
from holdfast.wire.peer import Hello

_SECONDS = 3.0
_PORTS = {"n1": 31_871, "n2": 31_872}
# (bytes of an entry, entries of an Append)
_SHAPES = ((1024, 500), (1024, 16), (1024, 1), (65_536, 16), (65_536, 1), (1 << 20, 1))
_NONE = LogIndex(-1)


class Side:
    """One of the two processes."""

    def __init__(self, node: str, other: str) -> None:
        self.node = node
        self.other = other
        said = Hello(cluster="bench", node=node, life="1", boot=node)
        self.links = PeerLinks(lambda: said, self)
        self.matched = asyncio.Event()
        self.match = -1

    async def start(self) -> None:
        await self.links.start("127.0.0.1", _PORTS[self.node])
        self.links.set_peers({self.other: f"127.0.0.1:{_PORTS[self.other]}"})

    def on_nobody_there(self, node: str) -> None:
        pass

    def on_messages(self, hello: Hello, messages: list[tuple[int, Message]]) -> None:
        for group, message in messages:
            if isinstance(message, Append):
                last = LogIndex(message.previous_index + len(message.entries))
                self.links.send(hello.node, group, AppendReply(message.term, last, False, _NONE, _NONE, Term(0)))
            elif isinstance(message, AppendReply):
                self.match = message.match
                self.matched.set()

    async def on_request(self, node: str, method: int, body: memoryview) -> bytes:
        return str(_cpu_s()).encode()

    def on_up(self, hello: Hello) -> None: ...
    def on_down(self, node: str) -> None: ...
    def on_heard(self, node: str) -> None: ...
    def on_dropped(self, node: str) -> None: ...

    def on_namesake(self, hello: Hello) -> None: ...

    def refusal(self, hello: Hello) -> str | None:
        return None


async def follow() -> None:
    side = Side("n2", "n1")
    await side.start()
    while not side.links.is_up("n1"):
        await asyncio.sleep(0.01)
    while side.links.is_up("n1"):
        await asyncio.sleep(0.2)
    await side.links.stop()


async def lead() -> None:
    side = Side("n1", "n2")
    await side.start()
    while not (side.links.is_up("n2") and side.links.hello_of("n2")):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    heads = ("entry, bytes", "per Append", "entries/s", "MB/s", "us to send", "to receive")
    print("".join(f"{head:>13s}" for head in heads))
    for entry_bytes, count in _SHAPES:
        cpu_there_s = -float(await side.links.request("n2", 1, b"", 5.0))
        cpu_here_s = -_cpu_s()
        entries, seconds = await _stream(side, entry_bytes, count)
        cpu_here_s += _cpu_s()
        cpu_there_s += float(await side.links.request("n2", 1, b"", 5.0))
        print(
            f"{entry_bytes:13,d}{count:13d}{entries / seconds:13,.0f}{entries * entry_bytes / seconds / 1e6:13,.0f}"
            f"{cpu_here_s / entries * 1e6:13.2f}{cpu_there_s / entries * 1e6:13.2f}"
        )
    started = time.perf_counter()
    for _ in range(5000):
        await side.links.request("n2", 1, b"ping", 5.0)
    print(f"one request after the other: {(time.perf_counter() - started) / 5000 * 1e6:.0f} us each")
    await side.links.stop()


async def _stream(side: Side, entry_bytes: int, count: int) -> tuple[int, float]:
    """How many entries were acknowledged in how many seconds."""
    # Different buffers, as a log would give.
    pool = [[Entry(Term(1), 1, bytes(entry_bytes)) for _ in range(count)] for _ in range(8)]
    under_way: deque[int] = deque()
    window = max(1, min(256, INFLIGHT_BYTES_MAX // (entry_bytes * count)))
    index = side.match = -1
    started = time.perf_counter()
    deadline = started + _SECONDS
    while time.perf_counter() < deadline:
        while under_way and under_way[0] <= side.match:
            under_way.popleft()
        if len(under_way) >= window:
            side.matched.clear()
            await side.matched.wait()
            continue
        message = Append(Term(1), LogIndex(index), Term(1), LogIndex(index), pool[len(under_way) % len(pool)])
        side.links.send("n2", 1, message)
        index += count
        under_way.append(index)
        if len(under_way) % 16 == 0:
            await asyncio.sleep(0)
    while side.match < index:
        side.matched.clear()
        await side.matched.wait()
    return index + 1, time.perf_counter() - started


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _run(main: Callable[[], Coroutine[Any, Any, None]], *, plain: bool) -> None:
    with asyncio.Runner(loop_factory=None if plain else uvloop.new_event_loop) as runner:
        runner.run(main())


def main() -> None:
    plain = "asyncio" in sys.argv
    if "follow" in sys.argv:
        _run(follow, plain=plain)
        return
    module = "benchmarks.experiments.peer_links"
    follower = subprocess.Popen([sys.executable, "-m", module, "follow", *sys.argv[1:]])
    try:
        _run(lead, plain=plain)
    finally:
        follower.terminate()
        follower.wait()


if __name__ == "__main__":
    main()
