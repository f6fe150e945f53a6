"""A broker from its settings: the parts, the order they start in, and the order they leave in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from importlib.metadata import version
from pathlib import Path

import structlog

from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.broker.processing import is_derived, processed_topic
from holdfast.frontends.callbacks.deliveries import CallbackDeliveries
from holdfast.frontends.http import HttpFrontend, Info
from holdfast.frontends.text.server import TextFrontend
from holdfast.model.errors import BadTopicName, ConfigError, HoldfastError
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.limits import PARTITIONS_MAX
from holdfast.node import measures, rejoining
from holdfast.node.config import Config, parse_address
from holdfast.node.stores import ClusterStore, Store, broker_over, store_for
from holdfast.processors.pool import WARNINGS, WorkerPool
from holdfast.processors.stage import ProcessingStage
from holdfast.transactions.service import Transactions
from holdfast.transactions.settings import EVERYDAY as TRANSACTION_EVERYDAY
from holdfast.transactions.settings import WARNINGS as TRANSACTION_WARNINGS
from holdfast.transactions.settings import Settings as TransactionSettings
from holdfast.wire.peer import Hello
from holdfast.wire.text import DIALECTS

_EVERYWHERE = ("0.0.0.0", "::")
log = structlog.get_logger("holdfast")

# Fewer than this is worth a word at start.
_FEW_CONNECTIONS = 1000
# How far behind a node may be that has to lead next, in what it knows of ids.
_STAND_BY_S = 0.25
# So often a leader asks what time it is. Where clocks were put right, its stamps are wrong for about so long.
_ASK_TIME_S = 10.0
# Of a pair: so often what no live subscriber waits for is noted as delivered.
_NOTE_DELIVERIES_S = 0.5


def now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Node:
    """One broker process. `start`, then `stop`; both once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.addresses: dict[str, str] = {}
        self._files_max = 0
        self.pool: WorkerPool | None = None
        self.stage: ProcessingStage | None = None
        self.deliveries: CallbackDeliveries | None = None
        # Set when this node cannot keep what it promises any more.
        self.failed = asyncio.Event()
        self.failure: HoldfastError | None = None
        # Set when it has to begin anew: one of a pair was replaced, or a node that is to join was removed before.
        self.replaced = asyncio.Event()
        self._started_ms = now_ms()
        self._started_s = time.monotonic()
        self._upkeep: list[asyncio.Task[None]] = []
        self._handled = {TopicName(name) for name in config.processor_topics}
        self.store: Store
        self.broker: Broker
        self.transactions: Transactions
        self.text: TextFrontend
        self.http: HttpFrontend

    @property
    def backend(self) -> Backend:
        return self.store.backend

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_s

    async def start(self) -> None:
        """Start everything, or nothing: what was started is stopped again if a later part cannot be."""
        async with contextlib.AsyncExitStack() as undo:
            await self._start(undo)
            undo.pop_all()

    async def _start(self, undo: contextlib.AsyncExitStack) -> None:
        config = self.config
        self._files_max = _allow_many_files()
        # Before anything is opened: the store of a pair is ready only when both are there.
        for name in ("text", "http"):
            _check_is_free(config, name)
        self.store = store_for(
            config,
            now_ms=now_ms,
            files_max=self._files_max,
            delivers_from=self._delivers_from,
            on_fatal=self._on_fatal,
            on_replaced=self._on_replaced,
            on_begin_again=self.replaced.set,
        )
        await self.store.start()
        undo.push_async_callback(self.store.stop)
        self.broker = broker_over(
            self.store,
            config,
            now_ms=now_ms,
            steady_ms=steady_ms,
            delivers_from=self._delivers_from,
            on_skip=lambda text: log.warning("messages_skipped", what=text),
        )
        self.transactions = Transactions(
            self.broker,
            now_ms=now_ms,
            settings=TransactionSettings(
                expiry_ms=config.transaction_expiry_ms, staged_bytes_max=config.transaction_staged_bytes_max
            ),
            log=_log_transactions,
        )
        self.transactions.start()
        undo.push_async_callback(self.transactions.stop)
        spec = config.processor_spec
        if spec is not None:
            self.pool = WorkerPool(spec, config.processor_settings, log=_log_processing)
            await self.pool.start()
            undo.push_async_callback(self.pool.stop)
            self.stage = ProcessingStage(self.broker, self.pool, handles=self._is_processed, log=_log_processing)
            await self.stage.start()
            undo.push_async_callback(self.stage.stop)
        if (callbacks := self.store.callbacks) is not None:
            self.deliveries = CallbackDeliveries(
                self.broker,
                callbacks,
                config.callback_policy,
                ack_timeout_s=config.callback_ack_timeout_ms / 1000,
                connections_max=self._files_max // 5,
                log=log.warning,
            )
            announcer = self.deliveries.announcer if config.callback_acks else None
            self.broker.callbacks.serve(callbacks, config.callback_policy, announcer)
            self.deliveries.start()
            undo.push_async_callback(self.deliveries.stop)
        await self._listen(undo)
        self.addresses |= self.store.announce(self.addresses)
        loop = asyncio.get_running_loop()
        self._upkeep = [loop.create_task(each) for each in self.store.upkeep()]
        self._upkeep.append(loop.create_task(self._ask_time()))
        if config.peer is not None:
            self._upkeep.append(loop.create_task(self._stand_by()))
        if config.pair is not None:
            self._upkeep.append(loop.create_task(self._note_deliveries()))

    async def _listen(self, undo: contextlib.AsyncExitStack) -> None:
        config = self.config
        # A fifth of the files for each kind of connection and for partitions; the rest is for what they need.
        connections_max = min(config.connections_max, self._files_max // 5)
        if connections_max < config.connections_max:
            say = log.warning if connections_max < _FEW_CONNECTIONS else log.debug
            say("fewer_connections", wanted=config.connections_max, served=connections_max, hint="raise ulimit -n")
        self.text = TextFrontend(
            self.broker,
            DIALECTS[config.text_dialect],
            connections_max=connections_max,
            half_line_timeout_s=config.half_line_timeout_ms / 1000,
            intake=self.store.intake,
        )
        self.http = HttpFrontend(
            self.broker,
            info=self._info,
            log=log.error,
            metrics_source=lambda: measures.measured(self),
            body_bytes_max=config.http_body_bytes_max,
            connections_max=connections_max,
            host_names_allowed=config.http_host_names,
            file_buffer=self.store.spill.file_buffer if self.store.spill is not None else None,
            transactions=self.transactions,
            on_publish=_log_publish if log.is_enabled_for(logging.DEBUG) else None,
        )
        for name, front_end in (("text", self.text), ("http", self.http), ("queen", self.http)):
            wanted = getattr(config, name)
            if wanted is None:
                continue
            host, port = parse_address(name, wanted)
            try:
                taken = await front_end.start(host, port)
            except OSError as error:
                raise _cannot_listen(config, name, error) from error
            undo.push_async_callback(front_end.stop, 0.0)
            self.addresses[name] = f"[{taken[0]}]:{taken[1]}" if ":" in taken[0] else f"{taken[0]}:{taken[1]}"

    async def stop(self) -> None:
        """Take nothing new, answer what was received, deliver what is under way, sync, close."""
        drain_s = self.config.drain_ms / 1000
        # First of all: publishers elsewhere need not wait for an election, and those here are forwarded.
        await self.store.hand_over()
        # What the processors still make of messages taken before has its place among the derived topics.
        self.broker.refuse_publishes(but_for=is_derived)
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await asyncio.gather(self.text.stop(drain_s), self.http.stop(drain_s))
        if self.stage is not None and self.pool is not None:
            await self.stage.stop(drain_s)
            await self.pool.stop()
        if self.deliveries is not None:
            await self.deliveries.stop()
        await self.transactions.stop()
        await self.store.stop()

    def _on_fatal(self, error: HoldfastError) -> None:
        """The disk failed, or the cluster has gone on without this build: the process ends, and the others carry on."""
        self.failure = error
        self.failed.set()

    def _on_replaced(self) -> bool:
        """Of a pair: the other one took over. Whether that is noted, so that this node is begun anew."""
        assert isinstance(self.store, ClusterStore)
        hello = self.store.cluster_backend.neighbours.partner_hello
        assert hello is not None
        try:
            rejoining.note(Path(self.config.data), rejoining.Replaced(hello.node, self._http_of(hello)))
        except OSError as error:
            log.error("cannot_give_way", by=hello.node, problem=str(error), hint="it is tried again when they meet")
            return False
        log.error("replaced", by=hello.node, hint="what only this node has is given to it; then this is its backup")
        self.replaced.set()
        return True

    def _http_of(self, hello: Hello) -> str:
        """Where another node serves HTTP: one that listens everywhere is found where its peers find it."""
        host, port = parse_address("http", hello.addresses["http"])
        if host in _EVERYWHERE:
            host, _ = parse_address("peers", self.config.peer_addresses[hello.node])
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # --- processing ---------------------------------------------------------------------------------

    def _is_processed(self, name: TopicName) -> bool:
        if self.pool is None or is_derived(name):
            return False
        return not self._handled or name in self._handled

    def _delivers_from(self, name: TopicName) -> TopicName:
        if self._is_processed(name):
            with contextlib.suppress(BadTopicName):  # no room for the suffix: such a topic is not processed
                return processed_topic(name)
        return name

    # --- upkeep -------------------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        while True:
            await asyncio.sleep(_STAND_BY_S)
            await self.broker.stand_by()

    async def _ask_time(self) -> None:
        while True:
            await asyncio.sleep(_ASK_TIME_S)
            await self.broker.ask_time()

    async def _note_deliveries(self) -> None:
        while True:
            await asyncio.sleep(_NOTE_DELIVERIES_S)
            self.broker.delivery_marks.note_unwaited()

    def _info(self) -> Info:
        return Info(
            version=version("holdfast"),
            node=self.backend.node_id,
            cluster=self.store.cluster,
            addresses=self.addresses,
            started_ms=self._started_ms,
            uptime_ms=int(self.uptime_s * 1000),
            auto_create=self.config.auto_create,
        )


def _log_processing(event: str, /, **fields: object) -> None:
    (log.warning if event in WARNINGS else log.info)(event, **fields)


def _log_publish(topic: str, messages: int) -> None:
    log.debug("http_publish", topic=topic, messages=messages)


def _log_transactions(event: str, /, **fields: object) -> None:
    if event in TRANSACTION_EVERYDAY:
        log.debug(event, **fields)
    else:
        (log.warning if event in TRANSACTION_WARNINGS else log.info)(event, **fields)


def _check_is_free(config: Config, name: str) -> None:
    """Raises `ConfigError` if somebody listens already where a front end is going to."""
    host, port = parse_address(name, getattr(config, name))
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise _cannot_listen(config, name, error) from error


def _cannot_listen(config: Config, name: str, error: OSError) -> ConfigError:
    host, port = parse_address(name, getattr(config, name))
    reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    hint = f"end what listens there, or give another with --{name} or HOLDFAST_{name.upper()}"
    if config.pair is not None:
        hint = "end what listens there, or give another port"
    return ConfigError(f"cannot listen on {host}:{port} for {name}: {reason}; {hint}")


def _allow_many_files() -> int:
    """Every connection and partition is an open file; take as many as the system gives without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return allowed if allowed != resource.RLIM_INFINITY else 4 * PARTITIONS_MAX
