"""Members in `state.sqlite`: the rows of `consensus.membership`, read and written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from holdfast.consensus.membership import Member, Place

_COLUMNS = "node, place, number, since_ms, lives, replaces, is_drained"


def read(connection: sqlite3.Connection) -> Iterator[Member]:
    """Raises what reading a damaged file raises, and `ValueError`."""
    for node, place, number, since_ms, lives, replaces, is_drained in connection.execute(
        f"SELECT {_COLUMNS} FROM members"
    ):
        left = tuple(lives.split(",")) if lives else ()
        yield Member(node, Place(place), number, since_ms, left, replaces, bool(is_drained))


def put(row: Member) -> tuple[str, tuple[object, ...]]:
    values = (row.node, row.place, row.number, row.since_ms, ",".join(row.lives), row.replaces, int(row.is_drained))
    return "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?)", values


def without_node(node: str) -> list[tuple[str, tuple[object, ...]]]:
    """What is not known of a node any more that has left; that it has stays."""
    return [("DELETE FROM nodes WHERE node = ?", (node,)), ("DELETE FROM preferred WHERE node = ?", (node,))]
