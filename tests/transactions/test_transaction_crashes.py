"""A broker that dies between any two calls to its store: what it decided is done, once and whole, by the next one.

A simple model says what readers may see. The store stays; the broker over it is gone from one call to the next, either
before the call did anything or after it was done, and another one begins with nothing but what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from testkit.crashes import Crashed, DyingProxy
from testkit.sizes import examples, in_memory, scaled

from holdfast.broker.backend import Backend
from holdfast.model.errors import HoldfastError, WriterNotFound
from holdfast.model.transactions import StageReceipt
from tests.contract.stores import KINDS
from tests.transactions.desk import OTHER, Desk

PARTITIONS = 2
# Calls that change something, or on which a change depends.
CALLS = {
    "append",
    "append_all",
    "forward",
    "set_cursor",
    "delete_cursor",
    "read",
    "catch_up",
    "catch_up_cursors",
    "create_topic",
}


class CrashingTransactions(RuleBasedStateMachine):
    """One writer, two partitions, and a model of what they hold."""

    staged = Bundle("staged")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)
        self.directory = tempfile.TemporaryDirectory(dir=in_memory())
        self.desk = Desk(KINDS["alone-none"](Path(self.directory.name) / "data"))
        self.loop.run_until_complete(self.desk.store.open())
        self.backend: DyingProxy
        self.revive()
        self.run(self.desk.create("t", partitions=PARTITIONS))
        self.values = {number: list[bytes]() for number in range(PARTITIONS)}
        self.last = -1
        self.made = 0
        self.dropped_before = 0
        # What was staged before a forgetting that was answered, and all that was ever committed.
        self.forgotten_before = 0
        self.done: list[tuple[int, list[StageReceipt]]] = []

    def run(self, work: Any) -> Any:
        """Do something; whatever it waits for, it ends where the process dies."""

        async def until_done_or_dead() -> Any:
            working = asyncio.ensure_future(work)
            dying = asyncio.ensure_future(self.backend.died.wait())
            async with asyncio.timeout(20):
                await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
                raise Crashed
            return working.result()

        return self.loop.run_until_complete(until_done_or_dead())

    def revive(self) -> None:
        async def begin() -> None:
            if hasattr(self, "backend"):
                await self.desk.close()
            self.backend = DyingProxy(self.desk.store.backend, CALLS)
            self.desk.open(cast(Backend, self.backend))

        self.loop.run_until_complete(begin())

    @rule(
        target=staged,
        ahead=st.integers(1, 2),
        partitions=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=3),
    )
    def stage(self, ahead: int, partitions: list[int]) -> Any:
        if self.backend.is_dead:
            return multiple()
        receipts = []
        number = self.last + ahead
        for partition in partitions:
            values = [b"%d.%d" % (self.made, i) for i in range(2)]
            self.made += 1
            try:
                receipt = self.run(self.desk.stage(number, *values, partition=partition))
            except (Crashed, HoldfastError):
                return multiple()
            receipts.append((receipt, values))
        return (number, self.made, receipts)

    @rule(transaction=consumes(staged), dies_at=st.none() | st.integers(0, 14), after=st.booleans())
    def commit(
        self,
        transaction: tuple[int, int, list[tuple[StageReceipt, list[bytes]]]],
        dies_at: int | None,
        after: bool,
    ) -> None:
        number, made, receipts = transaction
        if dies_at is not None:
            self.backend.die_at(dies_at, after=after)
        try:
            result = self.run(self.desk.commit(number, *(receipt for receipt, _ in receipts)))
        except Crashed:
            # Dead, and asked again after it is back: decided or not, it is done now, and once.
            self.revive()
            try:
                result = self.run(self.desk.commit(number, *(receipt for receipt, _ in receipts)))
            except HoldfastError:
                assert made <= self.dropped_before or number <= self.last
                return
            if number > self.last:
                assert made > self.forgotten_before
                self._is_committed(number, receipts)
            return
        except HoldfastError:
            assert made <= self.dropped_before, "only what was dropped is refused"
            return
        assert result.duplicate == (number <= self.last)
        if number > self.last:
            assert made > self.forgotten_before
            self._is_committed(number, receipts)

    def _is_committed(self, number: int, receipts: list[tuple[StageReceipt, list[bytes]]]) -> None:
        self.last = number
        self.done.append((number, [receipt for receipt, _ in receipts]))
        for receipt, values in receipts:
            self.values[receipt.partition] += values

    @rule(which=st.integers(0, 99))
    def commit_late(self, which: int) -> None:
        """A request that comes once more is recognised, or refused if its writer was forgotten."""
        if not self.done or self.backend.is_dead or self.backend.will_die:
            return
        number, receipts = self.done[which % len(self.done)]
        try:
            result = self.run(self.desk.commit(number, *receipts))
        except HoldfastError:
            assert number > self.last
        else:
            assert result.duplicate

    @rule()
    def abort(self) -> None:
        for _ in range(2):
            try:
                self.run(self.desk.transactions.abort("w"))
            except Crashed:
                self.revive()
                continue
            break
        self.dropped_before = self.made

    @rule(dies_at=st.none() | st.integers(0, 10), after=st.booleans())
    def forget(self, dies_at: int | None, after: bool) -> None:
        """The writer begins anew, and nothing that is repeated after a death brings its old number back."""
        if dies_at is not None:
            self.backend.die_at(dies_at, after=after)
        for _ in range(2):
            try:
                self.run(self.desk.transactions.forget("w"))
            except Crashed:
                self.revive()
                continue
            except WriterNotFound:
                pass
            else:
                self.forgotten_before = self.made
            break
        self.last = -1
        # What its numbers have swept away before is not there for the new life.
        self.dropped_before = self.made

    @rule(is_dropped=st.booleans())
    def other_writer(self, is_dropped: bool) -> None:
        """Its open piece keeps all that is staged behind it, until it is dropped."""
        work = self.desk.transactions.abort(OTHER) if is_dropped else self.desk.stage(0, b"open", writer=OTHER)
        with contextlib.suppress(Crashed):
            self.run(work)

    @rule()
    def begin_again(self) -> None:
        self.revive()

    @invariant()
    def readers_see_what_is_committed_and_nothing_else(self) -> None:
        if not hasattr(self, "values") or self.backend.is_dead or self.backend.will_die:
            return
        for number, values in self.values.items():
            assert self.run(self.desk.values("t", number)) == values

    def teardown(self) -> None:
        self.revive()
        for number, values in self.values.items():
            assert self.run(self.desk.values("t", number)) == values
        self.loop.run_until_complete(self.desk.close())
        self.loop.run_until_complete(self.desk.store.stop())
        self.loop.close()
        self.directory.cleanup()


TestCrashingTransactions = CrashingTransactions.TestCase
TestCrashingTransactions.settings = type(examples(1, 1))(examples(25, 400), stateful_step_count=scaled(20, 40))


async def test_death_at_every_single_call_of_a_commit_leaves_it_done_once(tmp_path: Path) -> None:
    """Every point there is, one after the other: a commit of three pieces, and its driver that comes back."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # its tasks die as well
    desk = Desk(KINDS["alone-none"](tmp_path / "data"))
    await desk.store.open()
    desk.open()
    await desk.create("t", partitions=PARTITIONS)
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    number = calls = 0
    is_reached = True
    while is_reached:
        is_reached = False
        for dies_after in (False, True):
            receipts = []
            for i in range(4):
                values = [b"%d.%d.%d" % (number, i, j) for j in range(2)]
                receipts.append(await desk.stage(number, *values, partition=i % PARTITIONS))
                expected[i % PARTITIONS] += values
            await desk.close()
            backend = DyingProxy(desk.store.backend, CALLS)
            backend.die_at(calls, after=dies_after)
            desk.open(cast(Backend, backend))
            committing = asyncio.ensure_future(desk.commit(number, *receipts))
            dying = asyncio.ensure_future(backend.died.wait())
            await asyncio.wait((committing, dying), return_when=asyncio.FIRST_COMPLETED, timeout=20)
            is_reached = is_reached or backend.is_dead
            for task in (committing, dying):
                task.cancel()
            await asyncio.gather(committing, dying, return_exceptions=True)
            await desk.close()
            desk.open()
            assert (await desk.commit(number, *receipts)).last_number == number
            for partition, values in expected.items():
                assert await desk.values("t", partition) == values, (calls, dies_after)
            number += 1
        calls += 1
    assert calls > 10, "a commit of four pieces has more calls than that"
    await desk.close()
    await desk.store.stop()
