"""Lines that cannot be stored: each is kept once, whoever found it, and none is stored as well."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from holdfast.backends.spill import events, files, sums
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX, MESSAGE_BYTES_MAX_SETTABLE, MESSAGE_ID_BYTES_MAX
from holdfast.recovery import aside, lines
from holdfast.recovery.aside import Aside, Asides
from holdfast.recovery.backlog import Backlog, BacklogFile, Directories
from holdfast.recovery.lines import Places, Source
from holdfast.wire import batch_builder, record_batch
from tests.recovery.test_backlog import MemoryLedger


def test_file_that_is_nothing_but_damage_is_set_aside_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "_HELD_BYTES_MAX", 50)
    (tmp_path / "failed").mkdir()
    (tmp_path / "recovering").mkdir()
    source = tmp_path / "recovering" / "failover_019a0c11-7fe8.buf"
    kept = tmp_path / "failed" / source.name
    for _ in range(2):  # a task may run twice
        bad = Aside(source)
        for number in range(40):
            bad.add(BadLine(number, b"no line %d" % number, "damaged"))
            assert len(bad._held) < 10
        bad.finish()
        assert sorted(aside.line_numbers(kept)) == list(range(1, 41))
    with kept.open("ab") as torn:
        torn.write(b'{"line": 7')
    for _ in range(2):
        Asides([str(source)]).keep(0, BadLine(99, b"\xff", "refused"))
    assert len(files.failed_lines(kept)) == 41
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_refused_lines_are_added_and_nothing_is_written_again(tmp_path: Path) -> None:
    """A file may have thousands of them: each took as long as all before it."""
    (tmp_path / "failed").mkdir()
    (tmp_path / "recovering").mkdir()
    paths = [str(tmp_path / "recovering" / f"failover_019a0c11-7fe{number}.buf") for number in range(3)]
    kept = tmp_path / "failed" / Path(paths[1]).name
    one, other = Asides(paths), Asides(paths)
    one.keep(1, BadLine(0, b"0", "refused"))
    before = kept.stat().st_ino
    for number in range(1, 40):
        (one, other)[number % 2].keep(1, BadLine(number, b"%d" % number, "refused"))
        (other, one)[number % 3 % 2].keep(1, BadLine(number, b"%d" % number, "refused"))
    assert sorted(aside.line_numbers(kept)) == list(range(1, 41)) and kept.stat().st_ino == before
    sources, numbers = np.array([0, 1, 1, 2], np.int32), np.array([5, 5, 40, 5], np.int32)
    for task in (one, other, Asides(paths)):
        assert task.known(sources, numbers).tolist() == [False, True, False, False]


def test_step_of_a_file_with_many_lines_set_aside_looks_at_its_own_lines_alone(tmp_path: Path) -> None:
    """A file of nothing but refused lines took as long, for each step, as all steps before it."""
    (tmp_path / "failed").mkdir()
    (tmp_path / "recovering").mkdir()
    paths = [str(tmp_path / "recovering" / f"failover_019a0c11-7fe{number}.buf") for number in range(2)]
    count = 100_000
    bad = Aside(Path(paths[0]))
    for number in range(0, 2 * count, 2):
        bad.add(BadLine(number, b"", "refused"))
    bad.finish()
    task = Asides(paths)
    sources, numbers = np.array([1, 0, 0, 1, 0], np.int32), np.array([0, 0, 1, 2, 2 * count - 2], np.int32)
    expected = [False, True, False, False, True]
    assert task.known(sources, numbers).tolist() == expected, "it has read them now"
    tracemalloc.start()
    try:
        assert task.known(sources, numbers).tolist() == expected
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * count, "no copy of all of them is made"
    assert not len(task.known(sources[:0], numbers[:0]))


def test_line_that_a_broker_has_set_aside_is_neither_stored_nor_counted_twice(tmp_path: Path) -> None:
    text, _ = events.lines_of(
        PartitionId(TopicName("t"), 0), batch_builder.build_values([b"%d" % number for number in range(6)], 5), 5
    )
    whole = text.split(b"\n")[:-1]
    opened = SpillDirectory.open(tmp_path)
    file = files.completed(opened.new_file(files.FAILOVER))
    opened.note_failed(file, [BadLine(place, whole[place], "the topic was refused") for place in (0, 3)])
    opened.close()
    file.path.write_bytes(text)
    ledger = MemoryLedger()
    ledger.lines = {file.id: 2}
    with Directories([str(tmp_path)]) as locked:
        backlog = locked.next_backlog(ledger, "time", 1)
        assert backlog is not None and backlog.files[0].set_aside == [4]
        source = Source(0, backlog.files[0], locked.paths(backlog)[0])
        made = list(lines.blocks_of([source], Places(backlog), "time"))
        assert b"".join(made[0]["lines"].to_pylist()).split(b"\n")[:-1] == [whole[2], whole[4], whole[5]]
        assert locked.set_aside(backlog) == 1 and lines.skipped_lines(source) == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": "x" * (MESSAGE_ID_BYTES_MAX + 1)}, "a message id has 1 to"),
        ({"id": "ü" * (MESSAGE_ID_BYTES_MAX // 2 + 1)}, "a message id has 1 to"),
        ({"id": ""}, "a message id has 1 to"),
        ({"id": "two\nlines"}, "a message id has 1 to"),
        ({"payload_text": "x" * (MESSAGE_BYTES_MAX_SETTABLE + 1)}, "at most"),
        ({"key": "x" * (MESSAGE_BYTES_MAX_SETTABLE + 1)}, "at most"),
        ({"headers": [["h", "x"]] * (HEADERS_PER_MESSAGE_MAX + 1)}, "headers; at most"),
        ({"headers": [[record_batch.ID_HEADER, "mine"]]}, "give it as the id"),
    ],
    ids=[
        "long id",
        "long id in bytes",
        "empty id",
        "line break",
        "large value",
        "large key",
        "headers",
        "id as a header",
    ],
)
def test_message_that_no_broker_takes_is_set_aside_and_never_stored(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    good: dict[str, Any] = {"queue": "t", "partition": "Default", "number": 0, "time": 5, "at": 5, "payload_text": "v"}
    (tmp_path / "failed").mkdir()
    (tmp_path / "recovering").mkdir()
    path = tmp_path / "recovering" / "failover_019a8b08-c880-7000-8000-000000000000.buf"
    given = [{**good, "id": "é" * (MESSAGE_ID_BYTES_MAX // 2)}, {**good, **fields}, good]
    path.write_bytes(sums.summed(b"", [msgspec.json.encode(each)[:-1] for each in given]))
    file = BacklogFile(0, path.name, path.stat().st_size, 0, 5)
    backlog = Backlog(uuid4(), "memory", "time", [str(tmp_path)], [file], {}, 1)
    made = list(lines.blocks_of([Source(0, file, str(path))], Places(backlog), "time"))
    assert [line for each in made[0]["lines"].to_pylist() for line in each.splitlines()] == [
        path.read_bytes().splitlines()[0],
        path.read_bytes().splitlines()[2],
    ]
    [kept] = files.failed_lines(tmp_path / "failed" / path.name)
    assert kept.line == 2 and reason in kept.reason
