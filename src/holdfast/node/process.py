"""A broker as a process: its event loop, its signals, what it says when it starts, how it leaves."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

import msgspec
import structlog

from holdfast.backends.cluster import removal
from holdfast.consensus.partner import PairSettings
from holdfast.model.errors import BuildTooOld
from holdfast.model.limits import GC_THRESHOLDS, MIB
from holdfast.node import rejoining
from holdfast.node.config import Config
from holdfast.node.node import Node, now_ms

log = structlog.get_logger("holdfast")

# The exit code of a node whose disk failed.
EXIT_FAILED = 70
# Of glibc (`mallopt`): up to which size memory comes from the heap, and how much of that stays when it is free.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_HEAP_PIECE_BYTES_MAX = 4 * MIB
_HEAP_SPARE_BYTES_MAX = 32 * MIB


def run(config: Config, ready_file: Path | None, *, quiet: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises `HoldfastError` if it cannot start."""
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(config, ready_file, quiet=quiet))
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    return code


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: half the processor time per read. The code runs on either."""
    if os.environ.get("HOLDFAST_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _collect_less_often() -> None:
    """Have the garbage collector look at what is new, seldom, and never at what a broker is made of.

    Almost everything here is freed by its last reference. A node that takes entries makes thousands of small tuples
    in a moment; with the interpreter's own thresholds it spends up to half of its time looking for cycles in them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _keep_freed_memory() -> None:
    """Have the heap keep what one large request needed for the next one, up to a bound.

    Given back to the kernel and fetched again it costs a page fault for every 4 KiB: a quarter of what a push of 1,000
    items took. Where the C library is another one, everything stays as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _HEAP_PIECE_BYTES_MAX)
    mallopt(_M_TRIM_THRESHOLD, _HEAP_SPARE_BYTES_MAX)


async def _serve(config: Config, ready_file: Path | None, *, quiet: bool) -> int:
    while True:
        # One of a pair that was replaced gives up what it has before it takes part again.
        patience_s = (config.pair_settings or PairSettings()).patience_s
        await rejoining.give_up(Path(config.data), config.node, now_ms(), patience_s)
        code = await _serve_once(config, ready_file, quiet=quiet)
        if code is not None:
            return code
        quiet = True


async def _serve_once(config: Config, ready_file: Path | None, *, quiet: bool) -> int | None:
    """Until it is told to stop; the exit code, or none if it has to begin again."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    node = Node(config)
    await node.start()
    _collect_less_often()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if ready_file is not None:
        _write_ready_file(ready_file, node)
    if not quiet:
        _greet(node)
    ended = [loop.create_task(event.wait()) for event in (stopping, node.failed, node.replaced)]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.cancel()
    if node.failed.is_set():
        # Nothing that is not on the disk may be told to anybody any more; a clean stop would try to.
        mend = "start the version that they run" if isinstance(node.failure, BuildTooOld) else "mend the disk"
        log.critical("leaving", hint=f"the other nodes carry on; {mend}, then start this one again")
        os._exit(EXIT_FAILED)
    log.info("stopping")
    # A second signal means now; what was acknowledged is durable already.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os._exit, 1)
    await node.stop()
    log.info("stopped")
    return None if node.replaced.is_set() and not stopping.is_set() else 0


def _write_ready_file(path: Path, node: Node) -> None:
    """Whole or not there: whoever waits for the file may read it at once."""
    content = {"pid": os.getpid(), "node": node.backend.node_id, **node.addresses}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(msgspec.json.encode(content) + b"\n")
    temporary.replace(path)


def _greet(node: Node) -> None:
    if removal.was_removed(Path(node.config.data)):
        print(
            f"{node.backend.node_id} was taken out of its cluster, and serves nothing; start it with --join to have it "
            "back. Ctrl-C stops it.",
            flush=True,
        )
        return
    http = node.addresses["http"]
    server = "" if http == Config().http else f" --server {http}"
    queen = f"  queen  http://{node.addresses['queen']}\n" if "queen" in node.addresses else ""
    pair = ""
    if node.config.plain_partner is not None:
        pair = f"  pair   with {node.config.plain_partner}, in plain packets; see holdfast check{server}\n"
    elif node.config.pair is not None:
        partner = next(name for name in node.config.peer_addresses if name != node.backend.node_id)
        pair = f"  pair   with {partner} at {node.config.peer_addresses[partner]}; see holdfast check{server}\n"
    print(
        f"Holdfast serves from {node.store.place}\n"
        f"  text   {node.addresses['text']}\n"
        f"  http   http://{http}   (docs at http://{http}/docs)\n"
        f"{queen}{pair}"
        f'Try:  holdfast publish greetings "Hello"{server}\n'
        f"      holdfast subscribe greetings --from earliest{server}\n"
        "Ctrl-C stops it.",
        flush=True,
        file=sys.stdout,
    )
