"""Files of a recovery through every crash: each is stored by one recovery, and none is lost, doubled or left behind."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest
from testkit.crashes import Crashed, CrashPoint

from holdfast.backends.spill import events, files, inspecting, requeueing
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from holdfast.backends.spill.log_target import LogTarget, progress_path
from holdfast.broker.backend import Backend
from holdfast.model.errors import DataDirectoryError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.recovery import backlog as module
from holdfast.recovery.backlog import Backlog, Directories, Outcome
from holdfast.recovery.errors import RecoveryChanged, RecoveryIncomplete, RecoveryUnsure
from holdfast.wire import batch_builder

NAMES = [f"failover_019a8b08-c88{number}-7000-8000-00000000000{number}.buf" for number in range(4)]


OUTCOME = Outcome({"t": {"events": 10, "stored": 7, "duplicates": 3, "already_stored": 0}}, 0, 2)


class MemoryLedger:
    """A store that remembers which recovery has stored which file, and how often each was."""

    store_id = "memory"

    def __init__(self) -> None:
        self.faults = CrashPoint()
        self.numbers: dict[UUID, int] = {}
        self.done: set[tuple[UUID, str]] = set()
        self.stored: Counter[str] = Counter()
        self.lines: dict[UUID, int] = {}

    def topics(self) -> dict[str, int]:
        return {}

    def make_topics(self, partitions: Mapping[str, int]) -> None: ...

    def stored_lines(self, files: Mapping[UUID, Path]) -> dict[UUID, int]:
        return self.lines

    def has_begun(self, recovery: UUID) -> bool:
        return recovery in self.numbers

    def is_done(self, recovery: UUID) -> bool:
        return self.numbers.get(recovery) == 1

    def begin(self, recovery: UUID) -> None:
        self.faults.pass_by()
        self.numbers[recovery] = 0

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        self.faults.pass_by()
        self.numbers[recovery] = 1

    def forget(self, recovery: UUID) -> None:
        self.faults.pass_by()
        self.numbers.pop(recovery, None)

    def close(self) -> None: ...

    def store(self, backlog: Backlog) -> None:
        for file in backlog.files:
            self.faults.pass_by()
            if (backlog.recovery, file.name) not in self.done:
                self.done.add((backlog.recovery, file.name))
                self.stored[file.name] += 1


def spilled(root: Path) -> list[str]:
    """Two brokers with two files each, one of which a crash left unfinished."""
    for number, name in enumerate(NAMES):
        directory = root / f"broker-{number % 2}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / (f"{name}.tmp" if number == 3 else name)).write_bytes(b"a line\n" * (number + 1))
    return [str(root / "broker-0"), str(root / "broker-1")]


def recover(directories: Sequence[str], ledger: MemoryLedger) -> int:
    """How many recoveries it took."""
    count = 0
    with Directories(directories) as opened:
        while (backlog := opened.next_backlog(ledger, "time", 1)) is not None:
            seen = {each.path.name for path in directories for each in files.listed(Path(path))}
            assert not seen & {file.name for file in backlog.files}, "no broker finds them from here on"
            ledger.store(backlog)
            opened.finish(backlog, ledger, OUTCOME)
            count += 1
    return count


@contextlib.contextmanager
def faulty(ledger: MemoryLedger, faults: CrashPoint) -> Iterator[None]:
    """The disk and the store have these faults, and none afterwards."""
    ledger.faults = faults
    changes = [(module, "replace_file"), (module, "sync_directory"), (Path, "rename"), (Path, "unlink")]
    try:
        with faults.before_calls_of(*changes):
            yield
    finally:
        ledger.faults = CrashPoint()


def moments(tmp_path: Path) -> int:
    ledger = MemoryLedger()
    faults = CrashPoint()
    with faulty(ledger, faults):
        recover(spilled(tmp_path / "all"), ledger)
    return faults.count


def test_every_crash_leaves_what_the_next_run_finishes(tmp_path: Path) -> None:
    count = moments(tmp_path)
    assert count > 25, "there are as many moments"
    for first in range(count):
        root = tmp_path / f"crash-{first}"
        directories, ledger = spilled(root), MemoryLedger()
        # The run after it is killed, too, a little later.
        for at in (first, 3):
            with contextlib.suppress(Crashed), faulty(ledger, CrashPoint(at)):
                recover(directories, ledger)
        recover(directories, ledger)
        assert ledger.stored == Counter(NAMES), f"crash {first}"
        found = sorted(path.name for path in root.rglob("*.buf*") if path.parent.name == "recovered")
        assert found == sorted(NAMES) and not list(root.rglob("recovery.json"))
        assert recover(directories, ledger) == 0


def test_outcome_of_a_run_that_was_killed_late_is_told_by_the_next_one(tmp_path: Path) -> None:
    """As soon as the store says that everything is stored, and until the last directory has no note any more."""
    told = 0
    for at in range(moments(tmp_path)):
        root = tmp_path / f"crash-{at}"
        directories, ledger = spilled(root), MemoryLedger()
        with pytest.raises(Crashed), faulty(ledger, CrashPoint(at)):
            recover(directories, ledger)
        is_stored = 1 in ledger.numbers.values()
        has_note = bool(list(root.rglob("recovery.json")))
        with Directories(directories) as opened:
            while (backlog := opened.next_backlog(ledger, "time", 1)) is not None:
                ledger.store(backlog)
                opened.finish(backlog, ledger, OUTCOME)
            assert list(opened.stored_before) == [(len(NAMES), OUTCOME)] * (is_stored and has_note)
        told += is_stored and has_note
    assert told > 10


def test_what_is_spilled_after_a_crash_is_a_recovery_of_its_own(tmp_path: Path) -> None:
    directories, ledger = spilled(tmp_path), MemoryLedger()
    with Directories(directories) as opened:
        begun = opened.next_backlog(ledger, "time", 1)
    assert inspecting.examine(tmp_path / "broker-0").recovering == 2, "people are told"
    later = tmp_path / "broker-0" / f"failover_{uuid4()}.buf"
    later.write_bytes(b"a line\n")
    with Directories(directories) as opened:
        assert opened.next_backlog(ledger, "kept", 9) == begun, "settings of the first run count"
    assert recover(directories, ledger) == 2
    assert ledger.stored == Counter([*NAMES, later.name])


def test_recovery_that_was_begun_needs_all_that_it_had(tmp_path: Path) -> None:
    directories, ledger = spilled(tmp_path), MemoryLedger()
    with Directories(directories) as opened:
        assert opened.next_backlog(ledger, "time", 1) is not None
    with pytest.raises(RecoveryIncomplete, match="broker-1"):
        recover(directories[:1], ledger)
    other = MemoryLedger()
    other.store_id = "another"
    with pytest.raises(RecoveryChanged, match="another store"):
        recover(directories, other)
    changed = tmp_path / "broker-0" / "recovering" / NAMES[0]
    os.truncate(changed, 3)
    with pytest.raises(RecoveryChanged, match="put it back"):
        recover(directories, ledger)
    changed.write_bytes(b"a line\n")
    # Directories are known by their notes, not by where they were.
    (tmp_path / "broker-1").rename(tmp_path / "moved")
    assert recover([directories[0], str(tmp_path / "moved")], ledger) == 1
    assert ledger.stored == Counter(NAMES)


def test_recovery_is_not_forgotten_while_a_directory_has_a_note_of_it(tmp_path: Path) -> None:
    directories, ledger = spilled(tmp_path), MemoryLedger()
    with Directories(directories) as opened:
        backlog = opened.next_backlog(ledger, "time", 1)
        assert backlog is not None
        ledger.store(backlog)
        ledger.end(backlog.recovery, [])
    for given in (directories[1:], directories[:1], directories):
        assert recover(given, ledger) == 0
    assert ledger.stored == Counter(NAMES)


def test_what_failed_before_is_taken_once_no_recovery_is_open(tmp_path: Path) -> None:
    directories, ledger = spilled(tmp_path), MemoryLedger()
    batch = batch_builder.build_values([b"again"], 5)
    line, _ = events.lines_of(PartitionId(TopicName("t"), 0), batch, 5)
    opened = SpillDirectory.open(Path(directories[0]))
    gone = opened.new_file(files.FAILOVER)
    opened.note_failed(gone, [BadLine(0, line[:-1], "the topic was refused"), BadLine(1, b"no line", "damaged")])
    opened.close()
    with Directories(directories) as locked:
        assert locked.next_backlog(ledger, "time", 1) is not None
        assert locked.requeue_failed() == 0, "it may find them again"
    recover(directories, ledger)
    with Directories(directories) as locked:
        assert locked.requeue_failed() == 1
        backlog = locked.next_backlog(ledger, "time", 1)
        assert backlog is not None
        [path] = locked.paths(backlog)
        assert Path(path).read_bytes() == line


def test_copies_of_a_file_count_once(tmp_path: Path) -> None:
    """Somebody has copied a directory, while the broker was still writing."""
    directories, ledger = spilled(tmp_path), MemoryLedger()
    whole = Path(directories[0]) / NAMES[2]
    (Path(directories[1]) / NAMES[2]).write_bytes(whole.read_bytes()[:9])
    recover(directories, ledger)
    assert ledger.stored == Counter(NAMES)
    again = tmp_path / "again"
    others = spilled(again)
    (Path(others[1]) / NAMES[2]).write_bytes(b"something else\n")
    with pytest.raises(RecoveryChanged, match="different files"):
        recover(others, MemoryLedger())


def test_directory_that_is_no_spill_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    spill, home = spilled(tmp_path)[0], tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    for wrong in (tmp_path / "missing", home):
        with pytest.raises(DataDirectoryError, match="there is no spill"), Directories([spill, str(wrong)]):
            pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "link",
    [NAMES[1], f"{NAMES[1]}.tmp", f"failed/{NAMES[1]}", f"recovering/{NAMES[1]}", "failed", "recovering", "recovered"],
)
def test_file_that_a_link_leads_to_is_neither_copied_nor_moved_nor_added_to(tmp_path: Path, link: str) -> None:
    """`failover_….buf` may lead to /etc/passwd."""
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / NAMES[0]).write_bytes(b"a line\n")
    outside = tmp_path / "outside"
    if link.endswith((".buf", ".tmp")):
        outside.write_bytes(b"root:x:0:0\n")
    else:
        outside.mkdir()
    (spill / link).parent.mkdir(exist_ok=True)
    (spill / link).symlink_to(outside)
    before = {path: path.lstat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    with pytest.raises(DataDirectoryError, match="is a symbolic link"), Directories([str(spill)]):
        pass
    assert {path: path.lstat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before
    # The directory itself may be where it likes.
    (spill / link).unlink()
    (tmp_path / "moved").symlink_to(spill)
    assert recover([str(tmp_path / "moved")], MemoryLedger()) == 1


def test_file_with_a_name_as_long_as_a_uuid_is_recovered(tmp_path: Path) -> None:
    name = "failover_019a8b08-c880-7000-8000-0000000000-0.buf"
    (tmp_path / name).write_bytes(b"a line\n")
    ledger = MemoryLedger()
    assert recover([str(tmp_path)], ledger) == 1
    assert ledger.stored == Counter([name])


def test_failed_lines_of_a_file_that_is_being_recovered_wait_for_its_end(tmp_path: Path) -> None:
    """The recovery may find them again: queued as well, they would be stored twice."""
    line, _ = events.lines_of(PartitionId(TopicName("t"), 0), batch_builder.build_values([b"again"], 5), 5)
    opened = SpillDirectory.open(tmp_path)
    try:
        file = opened.new_file(files.FAILOVER)
        opened.note_failed(file, [BadLine(0, line[:-1], "the topic was refused")])
        (tmp_path / "recovering").mkdir()
        there = tmp_path / "recovering" / files.completed(file).path.name
        there.write_bytes(line)
        assert requeueing.requeue(opened) == 0
        there.unlink()
        assert requeueing.requeue(opened) == 1
    finally:
        opened.close()


def test_failed_line_that_a_broker_was_making_a_file_of_is_recovered_once(tmp_path: Path) -> None:
    """The broker was killed when the line was in both."""
    line, _ = events.lines_of(PartitionId(TopicName("t"), 0), batch_builder.build_values([b"again"], 5), 5)
    opened = SpillDirectory.open(tmp_path)
    opened.note_failed(opened.new_file(files.FAILOVER), [BadLine(0, line[:-1], "there is no topic [topic_not_found]")])
    [path] = files.failed_files(tmp_path)
    requeueing.mark_for_requeue(opened, path)
    made = requeueing.write_marked(opened, path)
    opened.close()
    with Directories([str(tmp_path)]) as locked:
        assert not locked.in_failed() and not locked.requeue_failed()
        backlog = locked.next_backlog(MemoryLedger(), "time", 1)
        assert made is not None and backlog is not None
        assert [file.name for file in backlog.files] == [made.file.path.name]


async def test_lines_that_a_cluster_has_stored_of_any_kind_of_file_are_left_out(tmp_path: Path) -> None:
    """Its spill notes them itself, under the one name that it has for all kinds."""
    target = LogTarget(cast(Backend, None), tmp_path)
    for kind in (files.FAILOVER, files.QOS0):
        file = uuid4()
        await target.store(file, 3, [])
        assert module.noted_lines(file, tmp_path / f"{kind}_{file}.buf") == 3


def test_damaged_note_of_stored_lines_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = uuid4()
    progress_path(tmp_path, file).write_bytes(b'{"do')
    with pytest.raises(DataDirectoryError, match="start its broker"):
        module.noted_lines(file, tmp_path / f"failover_{file}.buf")


def test_lines_that_only_a_database_can_tell_from_stored_ones_are_refused_before_anything_moves(tmp_path: Path) -> None:
    """Which lines its broker has stored of a file, half replayed or back after a power failure, stands there alone."""
    partition, mark = PartitionId(TopicName("t"), 0), f"{uuid4()}:7"
    plain = events.lines_of(partition, batch_builder.build_values([b'{"id":"in the payload"}'], 5), 5)[0]
    with_id = batch_builder.build_batch([NewMessage(value=b"1", id="known")], 5)
    fine = [
        events.lines_of(partition, with_id, 5)[0],
        events.lines_of(partition, with_id, 5, tried=mark)[0],
        b'{"queue":"t","payload":{"of":"Queen MQ"}}\n',
        b"damaged\n",
    ]
    first, second = (tmp_path / name for name in NAMES[:2])
    for lines, is_refused in ((fine, False), ([*fine, plain], True)):
        first.write_bytes(b"".join(fine))
        second.write_bytes(b"".join(lines))
        with Directories([str(tmp_path)]) as opened:
            if is_refused:
                with pytest.raises(RecoveryUnsure, match="--allow-duplicates"):
                    opened.check_fates()
            else:
                opened.check_fates()
    assert first.exists() and second.exists()


def test_failed_lines_that_a_database_may_have_are_refused_only_where_they_are_asked_for(tmp_path: Path) -> None:
    partition, batch = PartitionId(TopicName("t"), 0), batch_builder.build_values([b"1"], 5)
    opened = SpillDirectory.open(tmp_path)
    file = opened.new_file(files.FAILOVER)
    for place, tried in enumerate((None, "t/0@9", f"{uuid4()}:7")):
        line, _ = events.lines_of(partition, batch, 5, tried=tried)
        opened.note_failed(file, [BadLine(place, line[:-1], "refused")])
        opened.close()
        with Directories([str(tmp_path)]) as locked:
            locked.check_fates()
            if place < 2:
                locked.check_fates(is_with_failed=True)
            else:
                with pytest.raises(RecoveryUnsure):
                    locked.check_fates(is_with_failed=True)
