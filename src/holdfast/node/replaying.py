"""Storing what a spill kept without the broker that kept it: `holdfast spill replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from holdfast.backends.spill import files, requeueing
from holdfast.backends.spill.files import SpillDirectory
from holdfast.broker.broker import Broker
from holdfast.model.errors import Unavailable
from holdfast.node.config import Config
from holdfast.node.node import now_ms
from holdfast.node.stores import PostgresStore

# Whoever asks for this has named a directory, and wants it stored: another one is no help.
_IF_USED: Final = (
    "it stores what waits by itself, and `holdfast spill status` shows how far it is; to do that without the broker, "
    "stop it first"
)
_IF_UNUSABLE: Final = "storing needs the right to write there: run this as the broker's user, or copy the directory"


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages; `set_aside` went to `failed` just now, `failed` are all that are there."""

    stored: int
    already_stored: int
    set_aside: int
    failed: int


async def replay(
    config: Config, path: Path, *, is_with_failed: bool, timeout_s: float, on_progress: Callable[[int], None]
) -> Replayed:
    """Until nothing waits any more. Raises `DataDirectoryError` where a broker has the directory, `Unavailable`."""
    directory = SpillDirectory.open(path, if_used=_IF_USED, if_unusable=_IF_UNUSABLE)
    try:
        if is_with_failed:
            requeueing.requeue(directory)
        failed_before = files.count_failed(path)
    finally:
        directory.close()
    assert config.store is not None
    wanted = msgspec.structs.replace(
        config, spill=True, spill_dir=str(path), spill_startup_recovery_timeout_s=timeout_s
    )
    store = PostgresStore(wanted, config.store, now_ms=now_ms)
    await store.start()
    spill = store.spill
    assert spill is not None
    try:
        broker = Broker(spill, now_ms=now_ms, auto_create=config.auto_create)
        spill.create_with(partial(broker.ensure_topic, is_promised=True))
        async with asyncio.timeout(timeout_s):
            while not spill.is_drained:
                on_progress(spill.stats.replayed_events)
                await asyncio.sleep(config.spill_flush_ms / 1000)
    except TimeoutError:
        problem = store.backend.problem() or spill.inner.problem() or "it takes too long"
        raise Unavailable(f"not everything could be stored within {timeout_s:g} s: {problem}") from None
    finally:
        await store.stop()
    stats = spill.stats
    return Replayed(
        stored=stats.replayed_events,
        already_stored=stats.already_stored_events,
        set_aside=stats.failed_events - failed_before,
        failed=stats.failed_events,
    )
