"""Lines of `failed` become a file again: a kill at any point leaves each of them in one place."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from testkit.crashes import Crashed, CrashPoint

from holdfast.backends.spill import events, files, requeueing
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import Failed, SpillDirectory
from holdfast.model.ids import PartitionId, TopicName
from holdfast.storage import durable
from holdfast.wire import batch_builder

# Two of the same content: one is taken, the other one was refused for another reason.
VALUES = [b"1", b"2", b"1", b"3", b"4"]
CHANGES = [(os, "replace"), (os, "unlink"), (durable, "sync_file"), (requeueing, "sync_directory")]
CODES = ["bad_message", "bad_message", "topic_not_found", "bad_message", "bad_message"]


def noted(path: Path) -> SpillDirectory:
    """A directory whose `failed` has a line for each value."""
    opened = SpillDirectory.open(path)
    partition = PartitionId(TopicName("t"), 0)
    lines = [events.lines_of(partition, batch_builder.build_values([value], 5), 5)[0][:-1] for value in VALUES]
    bad = [BadLine(place, line, f"no [{code}]") for place, (line, code) in enumerate(zip(lines, CODES, strict=True))]
    opened.note_failed(opened.new_file(files.FAILOVER), bad)
    return opened


def take(opened: SpillDirectory) -> None:
    """The fourth line is stored; the others that were refused as it was become a file."""
    [path] = files.failed_files(opened.path)
    requeueing.mark_for_requeue(opened, path, lambda line: line.reason == "no [bad_message]", stored=4)
    requeueing.write_marked(opened, path)
    requeueing.drop_marked(opened, path)


def take_all(opened: SpillDirectory) -> None:
    requeueing.requeue(opened)


def values_of(lines: list[bytes]) -> Counter[bytes]:
    read, bad = events.events_of(b"".join(line + b"\n" for line in lines))
    assert not bad
    return Counter(event.value for event in read if event is not None)


def left_in(opened: SpillDirectory) -> tuple[list[Failed], list[bytes]]:
    """The lines in `failed`, and those in files that are to be stored."""
    failed = [line for path in files.failed_files(opened.path) for line in files.failed_lines(path)]
    waiting = [line for file in files.listed(opened.path) for line in file.path.read_bytes().split(b"\n")[:-1]]
    return failed, waiting


@pytest.mark.parametrize("work", [take, take_all])
def test_line_is_neither_lost_nor_in_two_places_after_a_kill(
    work: Callable[[SpillDirectory], None], tmp_path: Path
) -> None:
    """The process ends before one change of the disk, whichever it is."""
    is_over, changes = False, 0
    while not is_over:
        directory = tmp_path / str(changes)
        opened = noted(directory)
        with suppress(Crashed), CrashPoint(changes).before_calls_of(*CHANGES):
            work(opened)
            is_over = True
        opened.close()
        check_recovered(directory, work)
        changes += 1
    assert changes > 8, "it changes the disk at least eight times"


def check_recovered(directory: Path, work: Callable[[SpillDirectory], None]) -> None:
    again = SpillDirectory.open(directory)
    requeueing.finish_requeues(again)
    again.recover()
    failed, waiting = left_in(again)
    assert not any(line.again for line in failed)
    there = values_of([str(line.event).encode() for line in failed] + waiting)
    assert there in (Counter(VALUES), Counter(VALUES) - Counter([VALUES[3]] if work is take else []))
    work(again)
    failed, waiting = left_in(again)
    assert [line.line for line in failed] == ([3] if work is take else [])
    assert values_of(waiting) == Counter([b"1", b"2", b"4"] if work is take else VALUES)
    again.close()
