"""The store that the settings ask for: a node of a cluster on its own disk, or a PostgreSQL.

Everything about a node that depends on where its messages live is here, behind one small interface; what is the same
for all of them is in `node`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.backends.postgres import address
from holdfast.broker.backend import Backend
from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.model.ids import TimestampMs
from holdfast.model.limits import PARTITIONS_MAX
from holdfast.model.metrics import Metric
from holdfast.node import cluster_measures, postgres_measures
from holdfast.node.config import Config, parse_address
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

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        """Tell other brokers where this one is reached; returns that with what the store itself listens on."""
        ...

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run for as long as the node serves."""
        ...

    def measured(self) -> Iterator[Metric]: ...


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
    ) -> None:
        self._config = config
        self._expired_segments = 0
        self._directory = DataDirectory.open(Path(config.data), node=config.node, now_ms=now_ms())
        self.backend = ClusterBackend(
            self._directory,
            sync=parse_sync_policy(config.sync),
            now_ms=now_ms,
            segment_bytes=config.segment_bytes,
            default_retention=config.default_topic,
            partitions_max=min(PARTITIONS_MAX, files_max // 4),
            listen=parse_address("peer", config.peer) if config.peer is not None else None,
            peers=config.peer_addresses,
            pair=config.pair_settings,
            on_fatal=on_fatal,
            on_replaced=on_replaced,
        )

    @property
    def place(self) -> str:
        return f"{Path(self._config.data).absolute()} (sync: {self._config.sync})"

    @property
    def cluster(self) -> str:
        return self.backend.neighbours.cluster

    async def start(self) -> None:
        try:
            await self.backend.start()
        except BaseException:
            self._directory.close()
            raise

    async def hand_over(self) -> None:
        await self.backend.hand_over()

    async def stop(self) -> None:
        await self.backend.stop()

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        self.backend.neighbours.addresses |= addresses
        return {**addresses, **self.backend.neighbours.addresses}

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [self._expire(), self.backend.verify()]

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_ms / 1000)
            try:
                deleted = self.backend.expire()
            except OSError as error:  # the disk is in trouble; the next round may find it well again
                log.error("retention_failed", problem=str(error))
                continue
            if deleted:
                self._expired_segments += deleted
                log.info("retention", deleted_segments=deleted)

    def measured(self) -> Iterator[Metric]:
        return cluster_measures.measured(self.backend, self._expired_segments)


class PostgresStore:
    """A PostgreSQL that others run, or one that runs with this broker."""

    def __init__(self, config: Config, store: str, *, now_ms: Callable[[], TimestampMs]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._store = store
        self._directory: DataDirectory | None = None
        self._server: EmbeddedServer | None = None
        self.backend: PostgresBackend

    @property
    def place(self) -> str:
        return f"PostgreSQL: {self.backend.database.place}"

    @property
    def cluster(self) -> str:
        return self.backend.store_id

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
            self.backend = _postgres_backend(
                url,
                node=node,
                now_ms=self._now_ms,
                timeout_s=self._config.store_timeout_ms / 1000,
                dedupe_age_ms=self._config.dedupe_age_ms_max,
                default_retention=self._config.default_topic,
            )
            await self.backend.start()
            undo.pop_all()

    async def hand_over(self) -> None:
        """Whatever is processed here goes on elsewhere when its lease is given back, at the very end."""

    async def stop(self) -> None:
        await self.backend.stop()
        if self._server is not None:
            await self._server.stop()
        if self._directory is not None:
            self._directory.close()

    def announce(self, addresses: dict[str, str]) -> dict[str, str]:
        self.backend.holding.addresses = dict(addresses)
        return addresses

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [self.backend.retention.run_on(self._config.retention_check_ms / 1000)]

    def measured(self) -> Iterator[Metric]:
        return postgres_measures.measured(self.backend)


def _postgres_backend(url: str, **settings: Any) -> PostgresBackend:
    with _installed():
        from holdfast.backends.postgres.backend import PostgresBackend
    return PostgresBackend(url, **settings)


def _embedded_server(data: Path) -> EmbeddedServer:
    with _installed():
        from holdfast.backends.postgres.server import EmbeddedServer

        return EmbeddedServer(data)


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Parts that most brokers do not need are not installed with all of them."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"a PostgreSQL store needs the package {error.name}, which is not installed: "
            "pip install 'holdfast[postgres]'"
        ) from error
