"""A set of message ids in a file, so that it may hold any number of them in little memory.

The file is scratch space: nothing in it is needed after a crash, so nothing is synced. One that a crash left is deleted
when the next set is opened at the same path.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

# An id may be long. Two of a billion ids have the same digest with a probability of 1 in 10^21.
_DIGEST_BYTES: Final = 16
_CACHE_KIB: Final = 16 * 1024


class KnownIds:
    """Use it with `with`: the file is there for that long. Raises `sqlite3.Error`, for instance on a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> KnownIds:
        self._path.unlink(missing_ok=True)
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute("CREATE TABLE ids (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)

    def add(self, ids: Iterable[str]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR IGNORE INTO ids VALUES (?)", ((_digest(each),) for each in ids))
        self._database.execute("COMMIT")

    def __contains__(self, message_id: object) -> bool:
        assert isinstance(message_id, str)
        found = self._database.execute("SELECT 1 FROM ids WHERE digest = ?", (_digest(message_id),))
        return found.fetchone() is not None


def _digest(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
