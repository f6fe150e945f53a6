"""The brokers of a store: each says that it is there, and each partition is processed by one of them.

A broker beats twice a second: it writes that it is there and hears its own notice. One that was not seen for the length
of a lease is gone. Brokers that have a processor share the partitions of users' topics, and all brokers those of
internal ones: each takes what nobody holds, or somebody who is gone, up to its share, and lets go of what is more. A
broker counts its own lease from the moment it asked for it, so it stops before others may begin. What it stores after
that, because it was stopped and wakes up, meets the ids or stamps of what its successor stored, and cursors that only
go forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog
from asyncpg import Connection

from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.notices import Notices
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId
from holdfast.model.names import INTERNAL_PREFIX, is_internal
from holdfast.model.topics import Topic

log = structlog.get_logger("holdfast.postgres")

BEAT_S: Final = 0.5
LEASE_S: Final = 5.0
# So often it is looked whether another broker has the same name.
_BEATS_BETWEEN_LOOKS: Final = 4


class Holding:
    """This broker among the others, and the partitions that it alone processes."""

    def __init__(
        self,
        database: Database,
        known: KnownTopics,
        notices: Notices,
        broker_id: UUID,
        name: str,
        lease_s: float = LEASE_S,
    ) -> None:
        # How long a broker keeps its partitions without a beat. All brokers of a database must use the same value.
        self.lease_s = lease_s
        self.addresses: dict[str, str] = {}
        # The time of the oldest message that this broker keeps in its spill; others wait with newer ones.
        self.spilled_since: int | None = None
        # When the last beat was.
        self.beat_s: float | None = None
        # Why the last beat failed; none while they succeed.
        self.problem: str | None = None
        self.on_beat: Callable[[], None] = lambda: None
        # Of users' topics, and of internal ones.
        self.watchers: dict[bool, list[Callable[[PartitionId], None]]] = {False: [], True: []}
        self._database = database
        self._known = known
        self._notices = notices
        self._me = broker_id
        self.name = name
        # Others of the same name: when each was seen last, and which of them somebody was told of.
        self._namesakes: dict[UUID, int] = {}
        self._told_of: set[UUID] = set()
        self._beats = 0
        self._held: dict[PartitionId, int] = {}
        self._until_s = float("-inf")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        known.watchers.append(lambda topic: self.hurry())
        known.deletion_watchers.append(self._forget)
        notices.on_brokers = self.hurry

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self, writer_id: UUID) -> None:
        """Others may take what this broker holds, at once."""
        await self.stop()
        self._end_all()
        with contextlib.suppress(HoldfastError):  # then they find out when the lease is over
            await self._database.change(sql("leave"), self._me, writer_id)

    def hurry(self) -> None:
        """There may be something to take."""
        self._wake.set()

    def reign(self, partition: PartitionId) -> int | None:
        return self._held.get(partition) if time.monotonic() < self._until_s else None

    def watch(self, on_change: Callable[[PartitionId], None], *, of_internal: bool) -> None:
        """From now on this broker takes part."""
        self.watchers[of_internal].append(on_change)
        self.hurry()

    def told(self, topic_id: int, number: int, reign: int | None, broker_id: UUID | None) -> None:
        """What the database says of who holds a partition."""
        state = self._known.state(topic_id, number)
        if state is None or state.id not in self._held:
            return
        if broker_id != self._me or reign != self._held[state.id]:
            self._change({state.id: None})

    async def live(self) -> list[Any]:
        """The brokers that are there. Raises `Unavailable`."""
        return await self._database.fetch(sql("live_brokers"), self.lease_s)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._held and time.monotonic() >= self._until_s:
                log.warning("lease_lost", partitions=len(self._held))
                self._end_all()
            if not self._database.is_up:
                continue
            asked_s = time.monotonic()
            try:
                await self._beat(asked_s)
            except HoldfastError as error:
                self.problem = error.message
            else:
                self.beat_s = time.monotonic()
                self.problem = None
                self.on_beat()

    async def _beat(self, asked_s: float) -> None:
        async with self._database.connection() as connection:
            addresses = msgspec.json.encode(self.addresses).decode()
            processes, coordinates = bool(self.watchers[False]), bool(self.watchers[True])
            await connection.execute(
                sql("beat"),
                self._me,
                self.name,
                addresses,
                processes,
                coordinates,
                self._notices.next_notice(),
                self.spilled_since,
            )
            if processes or coordinates:
                held = await self._take_shares(connection)
                self._until_s = asked_s + self.lease_s
                self._change({**dict.fromkeys(self._held), **held})
            self._beats += 1
            if self._beats % _BEATS_BETWEEN_LOOKS == 0:
                self._look_at_namesakes(await connection.fetch(sql("brokers_named"), self.name, self._me, self.lease_s))

    def _look_at_namesakes(self, rows: Sequence[Any]) -> None:
        """An earlier life of this broker is never seen again; one that is seen again is somebody else."""
        for broker_id, addresses, seen_at in rows:
            if self._namesakes.get(broker_id, seen_at) < seen_at and broker_id not in self._told_of:
                self._told_of.add(broker_id)
                log.warning(
                    "broker_name_taken",
                    name=self.name,
                    other=addresses,
                    hint="brokers of one name do not wait for each other's older messages after an outage: give each "
                    "a name of its own with --node",
                )
        self._namesakes = {broker_id: seen_at for broker_id, _, seen_at in rows}
        self._told_of &= self._namesakes.keys()

    async def _take_shares(self, connection: Connection) -> Mapping[PartitionId, int | None]:
        async with connection.transaction():
            await connection.execute(sql("assign_alone"))
            brokers = await connection.fetch(sql("live_brokers"), self.lease_s)
            for of_internal in (False, True):
                if self.watchers[of_internal]:
                    live = [broker_id for broker_id, _, _, *takes_part in brokers if takes_part[of_internal]]
                    await self._take_share(connection, live, of_internal)
            rows = await connection.fetch(sql("held_reigns"), self._me)
        for topic_id, number, _, start, end, size_bytes, _ in rows:
            self._known.told(topic_id, number, start, end, size_bytes)
        return self._partitions_of(rows)

    def _partitions_of(self, rows: Sequence[Any]) -> dict[PartitionId, int | None]:
        """The rows' partitions, as far as they are known here, and their reigns."""
        found: dict[PartitionId, int | None] = {}
        for topic_id, number, reign, *_ in rows:
            state = self._known.state(topic_id, number)
            if state is not None:
                found[state.id] = reign
        return found

    async def _take_share(self, connection: Connection, live: list[UUID], of_internal: bool) -> None:
        kind = (INTERNAL_PREFIX, of_internal)
        partitions = await connection.fetchval(sql("count_partitions"), *kind)
        share = -(-partitions // max(1, len(live)))
        rows = await connection.fetch(sql("held_reigns"), self._me)
        held = [row for row in rows if is_internal(row[-1]) == of_internal]
        if len(held) > share:
            # Others may take it as soon as it is committed, whether this broker hears of that or not.
            held.sort(key=lambda row: (row[1] if of_internal else 0, row[0], row[1]))
            self._change(dict.fromkeys(self._partitions_of(held[share:])))
            await connection.execute(sql("release_reigns"), self._me, share, *kind)
        elif len(held) < share:
            await connection.execute(sql("claim_reigns"), self._me, live, share - len(held), *kind)

    def _change(self, held: Mapping[PartitionId, int | None]) -> None:
        for partition, reign in held.items():
            if self._held.get(partition) == reign:
                continue
            if reign is None:
                del self._held[partition]
            else:
                self._held[partition] = reign
            for on_change in self.watchers[is_internal(partition.topic)]:
                on_change(partition)

    def _forget(self, topic: Topic) -> None:
        """Whoever held it does not hold one of the same name that comes after it."""
        self._change({PartitionId(topic.name, number): None for number in range(topic.config.partitions)})

    def _end_all(self) -> None:
        self._change(dict.fromkeys(self._held))
