"""Files that Queen MQ left, exactly as it writes them: their messages are stored, once and in order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from testkit.postgres import Server

from holdfast.backends.spill import files, inspecting, queen
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from tests.spill.conftest import Open
from tests.spill.stores import Spilling
from tests.spill.test_command_line import replayed, told

# From the documents of Queen MQ, letter by letter.
PRINTED = (
    b'{"queue":"orders","partition":"customer-123","payload":{"id":1},"transaction_id":"tx-1","trace_id":"trace-1",'
    b'"namespace":"sales","task":"process"}\n'
    b'{"queue":"orders","partition":"customer-456","payload":{"id":2},"transaction_id":"tx-2","trace_id":"trace-2",'
    b'"namespace":"sales","task":"process"}\n'
    b'{"queue":"events","partition":"Default","payload":{"type":"login"},"transaction_id":"tx-3","trace_id":"trace-3",'
    b'"namespace":"","task":""}\n'
)
FIRST_MS = 0x019A0C117FE8


def line(number: int, **more: str) -> bytes:
    fields = {"queue": "orders", "partition": "Default", "payload": {"id": number}, "transaction_id": f"tx-{number}"}
    return json.dumps({**fields, "trace_id": "", "namespace": "", "task": "", **more}).encode() + b"\n"


def left_by_queen(directory: Path) -> None:
    (directory / "failed").mkdir(parents=True)
    (directory / "failed" / "failover_019a0c11-7abc.buf").write_bytes(line(0))
    (directory / "failover_019a0c11-7fe8.buf").write_bytes(PRINTED)
    (directory / "failover_019a0c11-8021-7abc-9def-0123456789ab.buf").write_bytes(line(4) + line(5, transaction_id=""))
    (directory / "failover_019a0c11-8999.buf.tmp").write_bytes(line(6) + line(7)[:-1])
    (directory / "qos0_019a0c11-8054.buf").write_bytes(line(8, queue="losable"))


async def popped(store: Spilling, topic: str) -> list[tuple[object, str, int]]:
    messages, _ = await store.broker.read(topic, 0, 0, 1000, 1 << 20)  # type: ignore[arg-type]
    return [(json.loads(each.value), (each.key or b"").decode(), each.timestamp_ms) for each in messages]


async def test_files_as_queen_mq_prints_them_are_stored_at_the_start(opened: Open, tmp_path: Path) -> None:
    left_by_queen(tmp_path / "spill")
    report = inspecting.examine(tmp_path / "spill")
    assert (report.lines, report.bad) == (8, 0), "each line that is whole waits, and none of them is damaged"
    store = await opened()
    await store.drained()
    assert [each[0] for each in await popped(store, "orders")] == [{"id": n} for n in (0, 1, 2, 4, 5, 6, 7)]
    assert (await popped(store, "orders"))[1] == ({"id": 1}, "customer-123", FIRST_MS)
    assert await popped(store, "events") == [({"type": "login"}, "Default", FIRST_MS)]
    assert [each[0] for each in await popped(store, "losable")] == [{"id": 8}]
    [first, *_], _ = await store.broker.read("orders", 0, 1, 1, 1 << 20)  # type: ignore[arg-type]
    labels = {"transaction-id": b"tx-1", "trace-id": b"trace-1", "namespace": b"sales", "task": b"process"}
    assert dict(first.headers) == labels
    assert store.spill.stats.failed_events == 0
    assert not files.failed_files(store.directory)


async def test_message_of_queen_mq_that_is_pushed_again_is_stored_once(opened: Open, tmp_path: Path) -> None:
    """Its clients give transaction ids, and send again what was not acknowledged."""
    left_by_queen(tmp_path / "spill")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "spill", copy)
    store = await opened()
    await store.drained()
    before = await popped(store, "orders")
    await store.stop()
    shutil.copytree(copy, tmp_path / "spill", dirs_exist_ok=True)
    again = await opened()
    await again.drained()
    assert await popped(again, "orders") == before


async def test_lines_of_queen_mq_that_an_older_version_set_aside_are_stored_when_asked(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", server.url)
    directory = SpillDirectory.open(tmp_path / "spill")
    bad = [BadLine(place, text, "it does not end with its sum") for place, text in enumerate(PRINTED.splitlines())]
    directory.note_failed(directory.new_file(files.FAILOVER), bad)
    directory.close()
    done = await replayed(directory.path, "--failed")
    assert (done["stored"], done["failed"]) == (3, 0)
    store = await opened(server.url, directory=tmp_path / "other")
    assert [each[0] for each in await popped(store, "orders")] == [{"id": 1}, {"id": 2}]


async def test_lines_in_failed_of_queen_mq_are_stored_by_hand(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", server.url)
    left_by_queen(tmp_path / "spill")
    assert told("status", str(tmp_path / "spill"))["lines"] == 8
    done = await replayed(tmp_path / "spill", "--failed")
    assert (done["stored"], done["failed"]) == (9, 0)


def test_kill_while_files_of_queen_mq_are_taken_over_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Each state that a kill can leave of one file."""
    name = "failover_019a0c11-7fe8.buf"
    done = tmp_path / "done"
    done.mkdir()
    (done / name).write_bytes(PRINTED)
    directory = SpillDirectory.open(done)
    [whole] = directory.recover()
    directory.close()
    rewritten = whole.path.read_bytes()
    states: list[dict[str, bytes]] = [
        {name: PRINTED},
        {name: PRINTED, f"{name}.adopted": rewritten[:-20]},
        {name: PRINTED, f"{name}.adopted": rewritten},
        {name: rewritten},
        {whole.path.name: rewritten},
    ]
    for number, state in enumerate(states):
        left = tmp_path / str(number)
        left.mkdir()
        for each, content in state.items():
            (left / each).write_bytes(content)
        directory = SpillDirectory.open(left)
        [file] = directory.recover()
        directory.close()
        assert (file.path.name, file.path.read_bytes()) == (whole.path.name, rewritten), state


def test_ids_of_lines_without_a_transaction_are_the_same_after_another_start(tmp_path: Path) -> None:
    """A cluster recognises by ids what it stored before a crash."""
    ids = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "failover_019a0c11-7fe8.buf").write_bytes(line(1, transaction_id="") * 2)
        directory = SpillDirectory.open(tmp_path / name)
        [file] = directory.recover()
        directory.close()
        ids.append([event.id for event in queen.events_of(file.path.read_bytes(), file)[0] if event is not None])
    assert ids[0] == ids[1] and len(set(ids[0])) == 2 and None not in ids[0]


def test_damaged_line_of_ours_is_not_taken_for_one_of_queen_mq(tmp_path: Path) -> None:
    """Files of ours, damaged in their first line, stay as they are."""
    left_by_queen(tmp_path / "spill")
    directory = SpillDirectory.open(tmp_path / "spill")
    [first, *_] = directory.recover()
    damaged = first.path.read_bytes().replace(b'"tx-0"', b'"tx-9"')
    first.path.write_bytes(damaged)
    directory.recover()
    directory.close()
    assert first.path.read_bytes() == damaged
    assert [each.reason for each in queen.events_of(damaged, first)[1]] == ["its sum does not match"]
