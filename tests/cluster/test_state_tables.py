"""Every table of `state.sqlite` comes back as it was: after a restart, from a peer, and out of a damaged file."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from holdfast.backends.cluster import levels, state
from holdfast.backends.cluster.draw_table import DrawRow
from holdfast.backends.cluster.state import Loaded, NodeRow
from holdfast.consensus.membership import Member, Place
from holdfast.model.callbacks import Callback
from holdfast.model.ids import CursorName, LogIndex, Offset, PartitionId, Term, TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig

TOPIC, CURSOR = TopicName("t"), CursorName("c")


def something_of_everything() -> Loaded:
    made = Topic(name=TOPIC, config=TopicConfig(), created_ms=TimestampMs(5), id=7, token="k", voters=("n1", "n2"))
    return Loaded(
        topics={TOPIC: made},
        cursors={(TOPIC, CURSOR): {0: Offset(4)}},
        nodes={"n1": NodeRow("n1", "life", {"http": "h:1"}, "1.0", levels.LEVEL)},
        preferred={PartitionId(TOPIC, 0): "n1"},
        draws={(TOPIC, CURSOR): {0: [DrawRow(0, 1, "reader", "17", Offset(3), 1)]}},
        callbacks={
            (TOPIC, CURSOR): Callback(
                topic=TOPIC,
                name=CURSOR,
                address="h:2",
                format="numbered",
                created_ms=TimestampMs(6),
                number=8,
                lost={0: 2},
            )
        },
        members=[Member("n2", Place.REMOVED, 6, 7, ("gone",), "n1", is_drained=True)],
        applied=LogIndex(9),
        applied_term=Term(2),
        level=levels.LEVEL,
    )


def test_no_table_is_forgotten_when_the_state_is_read_or_written(tmp_path: Path) -> None:
    kept = something_of_everything()
    for field in Loaded.__struct_fields__:
        assert getattr(kept, field) or field in {"problem", "is_incomplete"}, f"{field} is not looked at here"
    connection, _ = state._connect(tmp_path / "state.sqlite", kept.level)
    with contextlib.closing(connection):
        state._write(connection, list(state._statements_for(kept)))
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        empty = {name for name in tables if connection.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)}
        assert not empty, "a file that is rebuilt would be without these"
        read: set[str | None] = set()

        def look(action: int, table: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ:
                read.add(table)
            return sqlite3.SQLITE_OK

        connection.set_authorizer(look)
        loaded = state._load(connection)
        connection.set_authorizer(None)
        assert read >= tables, "a node that restarts would forget these"
    assert loaded == kept
