"""Connections to the database: each call has a deadline, and it is known whether the database is there.

While it is away nothing waits for it: calls are refused at once, and one task tries to reach it, soon at first and
every two seconds later. What the driver raises becomes one of the seam's errors here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import asyncpg
import structlog
from asyncpg import Connection

from holdfast.backends.postgres import address, schema
from holdfast.model.errors import ConfigError, DiskFull, HoldfastError, LeaderChanged, Unavailable

log = structlog.get_logger("holdfast.postgres")


# Connections for reads, cursors and topics, beside the writer's and the listener's. Reads are short, and what many
# want at once is asked once.
_CONNECTIONS_MAX: Final = 4
_RETRY_S_FIRST: Final = 0.1
RETRY_S_MAX: Final = 2.0
# It is there within this, or it is not there now.
_CONNECT_S_MAX: Final = 2.0
# What is wrong with the address and not with the moment.
_HOPELESS: Final = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
# A connection that ended by itself.
_BROKEN: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
TROUBLE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
# What is wrong with a message and not with the moment.
NOT_TAKEN: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
# Among these, not the message's fault: somebody else stored or deleted something at the same time.
CROSSED: Final = (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError)
# Those that leave the connection as it was.
_REFUSALS: Final = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InsufficientPrivilegeError,
)
# A session that is not told to wait for the disk is: what is acknowledged is durable. Anything stricter stays.
_PREPARE: Final = """
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""


class Database:
    """One PostgreSQL, as one broker sees it."""

    def __init__(self, url: str, *, timeout_s: float, application: str, retry_s_max: float = RETRY_S_MAX) -> None:
        self.timeout_s = timeout_s
        self.place = address.place(url)
        self.is_up = False
        self.outages = 0
        self.reconnects = 0
        # Run whenever the database is there (again), before anybody else may use it.
        self.on_up: list[Callable[[Connection], Awaitable[None]]] = []
        self.on_down: list[Callable[[], None]] = []
        self._url = url
        self._application = application
        self._retry_s_max = retry_s_max
        self._reason = "it was not reached yet"
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._keeper: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def problem(self) -> str | None:
        return None if self.is_up else f"the database is away ({self.place}): {self._reason}"

    def unavailable(self) -> Unavailable:
        return Unavailable(f"the database is away ({self.place}): {self._reason}")

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach it, or begin to try. Raises `ConfigError` for what no waiting will cure."""
        try:
            await self._reach()
        except _HOPELESS as error:
            raise ConfigError(f"the database refuses this broker ({self.place}): {_told(error)}") from error
        except TROUBLE as error:
            log.error("database_away", place=self.place, problem=self._told(error), hint="trying again all the time")
            self._begin_to_try(error)

    async def stop(self) -> None:
        self._is_stopping = True
        for task in (self._keeper, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        while self._idle:
            await self.close(self._idle.pop())
        self.is_up = False
        self._reason = "the broker is stopping"

    async def _reach(self) -> None:
        connection = await self.connect()
        try:
            async with asyncio.timeout(self.timeout_s):
                is_current = await schema.is_current(connection)
            if not is_current:
                await self._migrate(connection)
            async with asyncio.timeout(self.timeout_s):
                for on_up in self.on_up:
                    await on_up(connection)
        except BaseException:
            connection.terminate()
            raise
        self.is_up = True
        self._idle.append(connection)

    async def _migrate(self, connection: Connection) -> None:
        """Steps over large tables take as long as they take; they end with a database that answers nobody."""
        steps = asyncio.create_task(schema.migrate(connection))
        try:
            while not (await asyncio.wait([steps], timeout=self.timeout_s))[0]:
                try:
                    await self.close(await self.connect())
                except TROUBLE as error:
                    if is_away(error):
                        raise
        except BaseException:
            connection.terminate()
            await asyncio.gather(steps, return_exceptions=True)
            raise
        await steps

    def lost(self, error: BaseException) -> None:
        """Somebody found that the database is not there."""
        if not self.is_up or self._is_stopping:
            return
        self.outages += 1
        log.error("database_away", place=self.place, problem=self._told(error), hint="trying again all the time")
        self._begin_to_try(error)
        for on_down in self.on_down:
            on_down()

    def _look(self) -> None:
        """One connection broke, or one call took too long: see whether that is all."""
        if self.is_up and not self._is_stopping and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look_once())

    async def _look_once(self) -> None:
        try:
            connection = await self.connect()
        except TROUBLE as error:
            if is_away(error):
                self.lost(error)
            return
        if self._idle:
            await self.close(connection)
        else:
            self._idle.append(connection)

    def _begin_to_try(self, error: BaseException) -> None:
        self.is_up = False
        self._reason = self._told(error)
        while self._idle:
            self._idle.pop().terminate()
        self._keeper = asyncio.get_running_loop().create_task(self._try_on())

    async def _try_on(self) -> None:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        pause_s = _RETRY_S_FIRST
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._reach()
            except (*TROUBLE, HoldfastError) as error:
                reason = self._told(error)
                if reason != self._reason:
                    log.warning("database_still_away", place=self.place, problem=reason)
                self._reason = reason
                pause_s = min(self._retry_s_max, pause_s * 1.5)
            else:
                self.reconnects += 1
                log.info("database_back", place=self.place, away_ms=int((loop.time() - since_s) * 1000))
                return

    # --- connections --------------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """A connection of one's own. Raises what the driver raises."""
        limit_s = min(self.timeout_s, _CONNECT_S_MAX)
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._connect()
                except _BROKEN:
                    # It was there and was cut before it could be used: that says nothing of the database.
                    return await self._connect()
        except TimeoutError as error:
            raise TimeoutError(f"it does not let this broker connect within {limit_s:g} s") from error

    async def _connect(self) -> Connection:
        limit_ms = str(int(self.timeout_s * 1000))
        connection: Connection = await asyncpg.connect(
            self._url,
            # The database ends by itself what a broker that fell silent has begun: its locks are in others' way.
            server_settings={
                "application_name": self._application,
                "statement_timeout": limit_ms,
                "idle_in_transaction_session_timeout": limit_ms,
                "default_transaction_isolation": "read committed",
                "timezone": "UTC",
            },
        )
        try:
            await connection.execute(_PREPARE)
            # Milliseconds are all a message has: no date is made of each of them.
            await connection.set_type_codec(
                "timestamptz", schema="pg_catalog", format="tuple", encoder=_one_number, decoder=_number
            )
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def close(self, connection: Connection) -> None:
        try:
            await connection.close(timeout=_CONNECT_S_MAX)
        except TROUBLE:
            connection.terminate()

    @contextlib.asynccontextmanager
    async def connection(self, *, changes: bool = False) -> AsyncIterator[Connection]:
        """One of those that are shared, for calls that end soon. Raises `Unavailable`.

        With `changes` also `LeaderChanged`, where a change may be done and only the answer was lost.
        """
        if not self.is_up:
            raise self.unavailable()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(f"all connections to the database are busy ({self.place}); try again") from None
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = self._taken() or await self.connect()
                yield connection
                if self.is_up and not connection.is_closed():
                    self._idle.append(connection)
                    connection = None
        except TROUBLE as error:
            may_be_done = changes and connection is not None
            if isinstance(error, _REFUSALS) and connection is not None and not connection.is_closed():
                self._idle.append(connection)
                connection = None
            raise self.failed(error, connected=connection is not None, may_be_done=may_be_done) from error
        finally:
            self._slots.release()
            if connection is not None:
                connection.terminate()

    def _taken(self) -> Connection | None:
        """One that is idle; some may have been closed meanwhile by a database that was restarted."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """The rows of one statement that changes nothing. Raises `Unavailable`."""
        async with self.connection() as connection:
            rows: list[Any] = await connection.fetch(statement, *values)
            return rows

    async def change(self, statement: str, *values: object) -> list[Any]:
        """The rows of one statement that changes something. Raises `Unavailable`, `LeaderChanged`."""
        async with self.connection(changes=True) as connection:
            rows: list[Any] = await connection.fetch(statement, *values)
            return rows

    def failed(
        self, error: BaseException, *, connected: bool, may_be_done: bool = False
    ) -> Unavailable | LeaderChanged:
        """What to tell the caller. Where nobody can connect, the database is known to be away from now on."""
        if isinstance(error, asyncpg.DiskFullError):
            return DiskFull(f"the database has no room left ({self.place}): {_told(error)}")
        if is_away(error):
            if connected:
                self._look()
            else:
                self.lost(error)
        if may_be_done and not _is_answer(error):
            told = f"the database was lost before it said whether this is done ({self.place}): {self._told(error)}"
            return LeaderChanged(told)
        return Unavailable(f"the database cannot do this now ({self.place}): {self._told(error)}")

    def _told(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and str(error):
            return str(error)
        if isinstance(error, TimeoutError | asyncpg.QueryCanceledError):
            return f"it does not answer within {self.timeout_s:g} s"
        return _told(error)


def is_away(error: BaseException) -> bool:
    """Whether the database itself is gone, and not only in the way of one statement."""
    return isinstance(
        error,
        OSError
        | TimeoutError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError
        | asyncpg.PostgresConnectionError
        | asyncpg.CannotConnectNowError
        | asyncpg.CrashShutdownError
        | asyncpg.AdminShutdownError
        | asyncpg.InvalidPasswordError
        | asyncpg.InvalidCatalogNameError,
    )


def _is_answer(error: BaseException) -> bool:
    """Whether the database itself says that a statement failed, so that nothing of it is done."""
    return isinstance(error, asyncpg.PostgresError) and not is_away(error)


def _told(error: BaseException) -> str:
    """One line, and nothing of the address: the driver does not repeat passwords, and neither do we."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return address.shown(text)


def _one_number(microseconds: int) -> tuple[int]:
    return (microseconds,)


def _number(parts: tuple[int]) -> int:
    return parts[0]
