"""The store that the settings ask for: a node of a cluster on its own disk, one of a plain pair, or a PostgreSQL.

Everything about a node that depends on where its messages live is here, behind one small interface; what is the same
for all of them is in `node`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.callback_table import ClusterCallbacks
from holdfast.backends.cluster.pace import USUAL_PACE, Pace
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.backends.plain.backend import PlainBackend
from holdfast.backends.plain.settings import PlainSettings
from holdfast.backends.postgres import address
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.log_target import LogTarget
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.broker.callbacks import CallbackStore
from holdfast.broker.intake import ReplicaIntake
from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.limits import PARTITIONS_MAX
from holdfast.model.metrics import Metric
from holdfast.node import cluster_measures, left_behind, postgres_measures, spill_measures
from holdfast.node.config import Config, parse_address
from holdfast.node.extras import needs_postgres
from holdfast.storage.directory import DataDirectory

if TYPE_CHECKING:
    from holdfast.backends.postgres.backend import PostgresBackend
    from holdfast.backends.postgres.server import EmbeddedServer

log = structlog.get_logger("holdfast")


class Store(Protocol):
    """A backend and its life within a node."""

    @property
    def backend(self) -> Backend: ...

    @property
    def place(self) -> str:
        """Where messages are, for people."""
        ...

    @property
    def cluster(self) -> str:
        """Equal on all brokers that share the store."""
        ...

    async def start(self) -> None:
        """Raises `HoldfastError`; then nothing runs."""
        ...

    async def hand_over(self) -> None:
        """The first step of leaving: others take what this broker has, without waiting for it to be gone."""
        ...

    async def stop(self) -> None: ...

    @property
    def intake(self) -> ReplicaIntake | None:
        """Who takes packets of replication from the text port, if anybody does."""
        ...

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        """Tell other brokers where this one is reached; returns that with what the store itself listens on."""
        ...

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run for as long as the node serves."""
        ...

    def measured(self) -> Iterator[Metric]: ...

    @property
    def callbacks(self) -> CallbackStore | None:
        """What keeps subscriptions that the cluster connects to, if anything does; once it is started."""
        ...

    @property
    def spill(self) -> SpillBackend | None:
        """What keeps messages while the store cannot take them; once it is started."""
        ...


class ClusterStore:
    """This broker's own disk, together with the nodes it knows."""

    def __init__(
        self,
        config: Config,
        *,
        now_ms: Callable[[], TimestampMs],
        files_max: int,
        on_fatal: Callable[[HoldfastError], None],
        on_replaced: Callable[[], bool],
        on_begin_again: Callable[[], None] = lambda: None,
        pace: Pace = USUAL_PACE,
    ) -> None:
        self._config = config
        self._directory = DataDirectory.open(Path(config.data), node=config.node, now_ms=now_ms())
        name = self._directory.identity.node
        if config.node not in (name, Config().node):
            self._directory.close()
            raise ConfigError(
                f"{config.data} is the directory of {name}, not of {config.node}; leave out --node to start {name}, or "
                "name another directory with --data"
            )
        self.cluster_backend = ClusterBackend(
            self._directory,
            sync=parse_sync_policy(config.sync),
            now_ms=now_ms,
            segment_bytes=config.segment_bytes,
            default_retention=config.default_topic,
            retention_wait=config.retention_wait,
            partitions_max=min(PARTITIONS_MAX, files_max // 5),
            dedupe_ids_max=config.dedupe_ids_max,
            dedupe_age_ms_max=config.dedupe_age_ms_max,
            listen=parse_address("peer", config.peer) if config.peer is not None else None,
            peers=config.peer_addresses,
            pair=config.pair_settings if config.plain_partner is None else None,
            join=config.join,
            elections=config.election_settings,
            pace=pace,
            on_fatal=on_fatal,
            on_replaced=on_replaced,
        )
        self.cluster_backend.on_begin_again = on_begin_again
        self.spill: SpillBackend | None = None
        self._now_ms = now_ms

    @property
    def backend(self) -> Backend:
        return self.cluster_backend if self.spill is None else self.spill

    @property
    def intake(self) -> None:
        return None

    @property
    def callbacks(self) -> CallbackStore:
        return ClusterCallbacks(self.cluster_backend)

    @property
    def place(self) -> str:
        return f"{Path(self._config.data).absolute()} (sync: {self._config.sync})"

    @property
    def cluster(self) -> str:
        return self.cluster_backend.neighbours.cluster

    async def start(self) -> None:
        try:
            self._check_sync()
            await self.cluster_backend.start()
        except BaseException:
            self._directory.close()
            raise
        if self._config.spills:
            try:
                target = LogTarget(self.cluster_backend, self._config.spill_directory)
                self.spill = _spill(self.cluster_backend, target, self._config, self._now_ms)
                await self.spill.start()
            except BaseException:
                await self.cluster_backend.stop()
                raise
        else:
            await left_behind.warn_of_left_behind(self._config)

    def _check_sync(self) -> None:
        """A broker that stood alone may have others by now, whatever its settings say. Raises `ConfigError`."""
        backend = self.cluster_backend
        if (
            backend.neighbours.has_peers
            and self._config.pair is None
            and not backend.sync_policy.acknowledges_after_sync
        ):
            raise ConfigError(
                f"sync is {self._config.sync}, but other nodes have joined this one, and a node of a cluster votes for "
                "what its disk has: it must be group"
            )

    async def hand_over(self) -> None:
        await self.cluster_backend.hand_over()

    async def stop(self) -> None:
        if self.spill is not None:
            await self.spill.stop()
        await self.cluster_backend.stop()

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        self.cluster_backend.neighbours.addresses |= addresses
        return {**addresses, **self.cluster_backend.neighbours.addresses}

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [self._expire(), self.cluster_backend.verify()]

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_ms / 1000)
            try:
                deleted = await self.cluster_backend.expire()
            except (HoldfastError, OSError) as error:  # the disk is in trouble; the next round may find it well again
                log.error("retention_failed", problem=str(error))
                continue
            if deleted:
                log.info("retention", deleted_segments=deleted)

    def measured(self) -> Iterator[Metric]:
        yield from cluster_measures.measured(self.cluster_backend)
        if self.spill is not None:
            yield from spill_measures.measured(self.spill)


class PlainStore:
    """This broker's own disk, and a partner of any make behind its text port."""

    def __init__(
        self,
        config: Config,
        settings: PlainSettings,
        *,
        now_ms: Callable[[], TimestampMs],
        files_max: int,
        delivers_from: Callable[[TopicName], TopicName],
        on_fatal: Callable[[HoldfastError], None],
    ) -> None:
        self._config = config
        self._settings = settings
        self._now_ms = now_ms
        self._delivers_from = delivers_from
        self._on_fatal = on_fatal
        self._alone = ClusterStore(
            config, now_ms=now_ms, files_max=files_max, on_fatal=on_fatal, on_replaced=lambda: False
        )
        self.backend: PlainBackend
        self.spill = None

    @property
    def intake(self) -> ReplicaIntake:
        return self.backend.intake

    @property
    def callbacks(self) -> None:
        return None  # the partner may be any broker, and would not know of them

    @property
    def place(self) -> str:
        return self._alone.place

    @property
    def cluster(self) -> str:
        return self._alone.cluster

    async def start(self) -> None:
        await self._alone.start()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._alone.stop)
            self.backend = PlainBackend(
                self._alone.backend,
                Path(self._config.data),
                self._settings,
                is_synced=self._config.sync == "group",
                message_bytes_max=self._config.message_bytes_max,
                now_ms=self._now_ms,
                delivers_from=self._delivers_from,
                on_fatal=self._on_fatal,
            )
            undo.pop_all()

    async def hand_over(self) -> None:
        """The partner notices when this one is gone."""

    async def stop(self) -> None:
        await self.backend.stop()
        await self._alone.stop()

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        # Front ends listen from here on: the partner may be looked for, and answer.
        self.backend.start()
        return self._alone.announce(addresses)

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return self._alone.upkeep()

    def measured(self) -> Iterator[Metric]:
        yield from self._alone.measured()
        yield from cluster_measures.of_pair(self.backend.described())


class PostgresStore:
    """A PostgreSQL that others run, or one that runs with this broker."""

    def __init__(self, config: Config, store: str, *, now_ms: Callable[[], TimestampMs]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._store = store
        self._directory: DataDirectory | None = None
        self._server: EmbeddedServer | None = None
        self.spill: SpillBackend | None = None
        self.database_backend: PostgresBackend

    @property
    def backend(self) -> Backend:
        return self.database_backend if self.spill is None else self.spill

    @property
    def intake(self) -> None:
        return None

    @property
    def callbacks(self) -> None:
        return None

    @property
    def place(self) -> str:
        return f"PostgreSQL: {self.database_backend.database.place}"

    @property
    def cluster(self) -> str:
        return self.database_backend.store_id

    async def start(self) -> None:
        async with contextlib.AsyncExitStack() as undo:
            node, url = self._config.node, self._store
            if url == address.EMBEDDED:
                self._directory = DataDirectory.open(Path(self._config.data), node=node, now_ms=self._now_ms())
                undo.callback(self._directory.close)
                node = self._directory.identity.node
                self._server = _embedded_server(Path(self._config.data) / "postgres")
                url = await self._server.start()
                undo.push_async_callback(self._server.stop)
            left_behind.warn_of_a_log(Path(self._config.data) / "topics")
            self.database_backend = _postgres_backend(
                url,
                node=node,
                now_ms=self._now_ms,
                timeout_s=self._config.store_timeout_ms / 1000,
                dedupe_age_ms=self._config.dedupe_age_ms_max,
                default_retention=self._config.default_topic,
                retention_wait=self._config.retention_wait,
                # While messages are kept here, every moment until it is noticed that the database is back counts.
                retry_s_max=self._config.spill_flush_ms / 1000 if self._config.spills else 2.0,
            )
            await self.database_backend.start()
            undo.push_async_callback(self.database_backend.stop)
            if self._config.spills:
                target = self.database_backend.replaying
                self.spill = _spill(self.database_backend, target, self._config, self._now_ms)
                await self.spill.start()
            else:
                await left_behind.warn_of_left_behind(self._config)
            undo.pop_all()

    async def hand_over(self) -> None:
        """Whatever is processed here goes on elsewhere when its lease is given back, at the very end."""

    async def stop(self) -> None:
        if self.spill is not None:
            await self.spill.stop()
        await self.database_backend.stop()
        if self._server is not None:
            await self._server.stop()
        if self._directory is not None:
            self._directory.close()

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        self.database_backend.holding.addresses = dict(addresses)
        return addresses

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [self.database_backend.retention.run_on(self._config.retention_check_ms / 1000)]

    def measured(self) -> Iterator[Metric]:
        yield from postgres_measures.measured(self.database_backend)
        if self.spill is not None:
            yield from spill_measures.measured(self.spill)


def store_for(
    config: Config,
    *,
    now_ms: Callable[[], TimestampMs],
    files_max: int,
    delivers_from: Callable[[TopicName], TopicName],
    on_fatal: Callable[[HoldfastError], None],
    on_replaced: Callable[[], bool] = lambda: False,
    on_begin_again: Callable[[], None] = lambda: None,
    pace: Pace = USUAL_PACE,
) -> Store:
    """The store that the settings ask for; `start` opens it. Raises `HoldfastError`."""
    if config.store is not None:
        return PostgresStore(config, config.store, now_ms=now_ms)
    if (settings := config.plain_settings) is not None:
        return PlainStore(
            config, settings, now_ms=now_ms, files_max=files_max, delivers_from=delivers_from, on_fatal=on_fatal
        )
    return ClusterStore(
        config,
        now_ms=now_ms,
        files_max=files_max,
        on_fatal=on_fatal,
        on_replaced=on_replaced,
        on_begin_again=on_begin_again,
        pace=pace,
    )


def broker_over(
    store: Store,
    config: Config,
    *,
    now_ms: Callable[[], TimestampMs],
    steady_ms: Callable[[], int] | None = None,
    delivers_from: Callable[[TopicName], TopicName],
    on_skip: Callable[[str], None],
) -> Broker:
    """A broker over a store that was started, and over its spill if it has one."""
    broker = Broker(
        store.backend,
        now_ms=now_ms,
        steady_ms=steady_ms,
        auto_create=config.auto_create,
        message_bytes_max=config.message_bytes_max,
        dedupe_ids_max=config.dedupe_ids_max,
        dedupe_age_ms_max=config.dedupe_age_ms_max,
        delivers_from=delivers_from,
        on_skip=on_skip,
    )
    if store.spill is not None:
        store.spill.create_with(partial(broker.ensure_topic, is_promised=True))
        broker.spill_with(store.spill.push_losable, store.spill.keep_pushed)
    return broker


def _spill(inner: Backend, target: Target, config: Config, now_ms: Callable[[], TimestampMs]) -> SpillBackend:
    left_behind.warn_of_recovery(config.spill_directory)
    settings = SpillSettings(
        directory=config.spill_directory,
        flush_ms=config.spill_flush_ms,
        max_batch=config.spill_max_batch,
        events_per_file=config.spill_events_per_file,
        retry_interval_s=config.spill_retry_interval_s,
        startup_recovery_timeout_s=config.spill_startup_recovery_timeout_s,
        deadline_ms_min=config.spill_deadline_ms_min,
        deadline_ms_max=config.spill_deadline_ms_max,
        free_bytes_min=config.spill_free_bytes_min,
        auto_create=config.auto_create,
    )
    return SpillBackend(inner, target, settings, now_ms=now_ms)


def _postgres_backend(url: str, **settings: Any) -> PostgresBackend:
    with needs_postgres():
        from holdfast.backends.postgres.backend import PostgresBackend
    return PostgresBackend(url, **settings)


def _embedded_server(data: Path) -> EmbeddedServer:
    with needs_postgres():
        from holdfast.backends.postgres.server import EmbeddedServer

        return EmbeddedServer(data)
