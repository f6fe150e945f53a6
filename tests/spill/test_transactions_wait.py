"""Transactions over a spill: they wait for the store, and overtake nothing that waits in the spill."""

from __future__ import annotations

import asyncio
import signal

import pytest
from testkit.batches import values_batch
from testkit.postgres import Server
from testkit.wait import until

from holdfast.model.errors import CommitPending, Unavailable
from holdfast.transactions.service import Transactions
from holdfast.transactions.settings import Settings
from tests.postgres.stores import now_ms
from tests.spill.conftest import Open


async def test_no_transaction_is_kept_in_the_spill_and_none_overtakes_what_is(opened: Open, server: Server) -> None:
    store = await opened(server.url, deadline_ms_min=100, deadline_ms_max=400)
    await store.create_in_store()
    transactions = Transactions(store.broker, now_ms=now_ms, settings=Settings(commit_wait_ms=500))
    transactions.start()

    async def stage(number: int, value: bytes) -> str:
        batch = values_batch(value, timestamp_ms=now_ms())
        return (await transactions.stage_batches("w", number, "t", 0, [batch])).receipt

    try:
        await transactions.commit("w", 0, [await stage(0, b"before")])
        staged = await stage(1, b"behind")
        await asyncio.to_thread(server.kill, signal.SIGSTOP)
        assert (await store.push(b"spilled"))[0].buffered
        with pytest.raises(Unavailable, match="wait for it"):
            await stage(2, b"never taken")
        with pytest.raises((Unavailable, CommitPending)):
            await transactions.commit("w", 1, [staged])
        assert store.spill.stats.spilled_events == 1
        await asyncio.to_thread(server.kill, signal.SIGCONT)
        await until(lambda: store.spill.is_healthy)
        while True:
            try:
                await transactions.commit("w", 1, [staged])
                break
            except (Unavailable, CommitPending):
                await asyncio.sleep(0.05)
        await store.drained()
        assert await store.values() == [b"before", b"spilled", b"behind"]
    finally:
        await transactions.stop()
