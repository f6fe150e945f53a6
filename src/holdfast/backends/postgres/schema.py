"""The tables of this backend, made and brought up to date by whichever broker comes first.

Everything stands in the schema `holdfast`. `holdfast.versions` has a row for each step that was taken (the files in
`sql/migrations`). All missing steps are one transaction under an advisory lock: of two brokers that start at the same
time one takes them and the other one finds them taken; a crash in the middle leaves nothing behind. The limits that
every other statement has do not hold for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from holdfast.backends.postgres.queries import migrations
from holdfast.model.errors import ConfigError

if TYPE_CHECKING:
    from asyncpg import Connection

log = structlog.get_logger("holdfast.postgres")

# Any number will do, as long as nobody else uses it: the letters H and F, and what is locked.
_LOCK: Final = "SELECT pg_advisory_xact_lock(4803, 0)"
# For this transaction only, the time it waits for another broker's steps included.
_NO_LIMIT: Final = "SET LOCAL statement_timeout = 0"
_EXISTS: Final = "SELECT to_regclass('holdfast.versions') IS NOT NULL"
_VERSION: Final = "SELECT coalesce(max(version), 0) FROM holdfast.versions"
_VERSIONS: Final = """
CREATE SCHEMA IF NOT EXISTS holdfast;
CREATE TABLE IF NOT EXISTS holdfast.versions (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_TAKEN: Final = "INSERT INTO holdfast.versions (version, name) VALUES ($1, $2)"
_SERVER_VERSION_MIN: Final = 15


async def is_current(connection: Connection) -> bool:
    """Whether no step is missing. Raises `ConfigError` where the database is too old or too new."""
    server = connection.get_server_version()
    if server.major < _SERVER_VERSION_MIN:
        raise ConfigError(f"the database is PostgreSQL {server.major}; it must be {_SERVER_VERSION_MIN} or newer")
    return await _version(connection) == len(migrations())


async def migrate(connection: Connection) -> None:
    """Take the steps that are missing, however long they take: a limit would end the same step with every start."""
    async with connection.transaction():
        await connection.execute(_NO_LIMIT)
        await connection.execute(_LOCK)
        await connection.execute(_VERSIONS)
        version = await _version(connection)
        # Nobody waits for long where nothing is there yet.
        told = log.info if version else log.debug
        for step in migrations()[version:]:
            told("schema_changing", version=step.version, step=step.name)
            await connection.execute(step.statements)
            await connection.execute(_TAKEN, step.version, step.name)
            told("schema_changed", version=step.version, step=step.name)
        if not version:
            log.info("schema_made", version=len(migrations()))


async def _version(connection: Connection) -> int:
    if not await connection.fetchval(_EXISTS):
        return 0
    version: int = await connection.fetchval(_VERSION)
    if version > len(migrations()):
        raise ConfigError(
            f"the schema holdfast is of version {version}, this broker knows up to {len(migrations())}: "
            "it was used by a newer Holdfast; update this one"
        )
    return version
