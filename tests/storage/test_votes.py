"""A vote that was given is remembered or the journal is refused: never is it silently forgotten."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.crashes import Crashed
from testkit.logs import flip
from testkit.shadow_disk import ShadowDisk
from testkit.sizes import examples, scaled

from holdfast.model.errors import DataDirectoryError, DiskFull, StorageFailed
from holdfast.storage import votes
from holdfast.storage.votes import VoteJournal, VotesDamaged

BIG_GROUP = 2**63


def sync(journal: VoteJournal) -> None:
    point = journal.sync_point()
    for fd in point.files:
        os.fdatasync(fd)
    journal.synced(point)


def states(path: Path) -> dict[int, bytes]:
    """What the journal says after a kill."""
    journal, found = VoteJournal.open(path, must_exist=True)
    journal.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "votes.log"


def test_last_state_of_every_group_is_remembered(path: Path) -> None:
    journal, found = VoteJournal.open(path)
    assert found == {}
    assert [journal.put(1, b"one"), journal.put(BIG_GROUP, b"other"), journal.put(1, b"one again")] == [1, 2, 3]
    assert journal.put(3, b"") == 4 and journal.put(4, b"gone") == 5 and journal.forget(4) == 6
    assert journal.forget(77) == 6, "a group that was never there is a change"
    assert journal.synced_number == 0
    sync(journal)
    assert journal.synced_number == journal.written_number == 6
    for _ in range(3):
        assert states(path) == {1: b"one again", BIG_GROUP: b"other", 3: b""}


def test_change_counts_as_durable_only_after_a_sync_that_began_behind_it(path: Path) -> None:
    journal, _ = VoteJournal.open(path)
    journal.put(1, b"first")
    point = journal.sync_point()
    second = journal.put(1, b"second")
    journal.synced(point)
    assert journal.synced_number == 1
    journal.sync_now()
    assert journal.synced_number == second
    journal.close()


def test_missing_journal_is_told_where_one_is_expected(path: Path) -> None:
    with pytest.raises(VotesDamaged) as told:
        VoteJournal.open(path, must_exist=True)
    assert isinstance(told.value, DataDirectoryError)
    assert not path.exists(), "a second start would find an empty journal and vote again"


@pytest.mark.parametrize("content", [b"", b"HFVOTES", b"something else that is long enough", bytes(500)])
def test_file_that_is_no_journal_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(VotesDamaged):
        VoteJournal.open(path)
    assert path.read_bytes() == content


def test_torn_tail_costs_nothing_that_was_synced(path: Path, tmp_path: Path) -> None:
    journal, _ = VoteJournal.open(path)
    journal.put(1, b"promised")
    sync(journal)
    synced = path.stat().st_size
    journal.put(1, b"unsynced")
    journal.put(2, b"unsynced as well")
    whole = path.read_bytes()
    journal.close()
    rolled = random.Random(1)
    for position in range(synced, len(whole)):
        rest = len(whole) - position
        for tail in (b"", bytes(rest), rolled.randbytes(rest)):
            torn = tmp_path / "torn.log"
            torn.write_bytes(whole[:position] + tail)
            found = states(torn)
            assert found[1] in (b"promised", b"unsynced") and found.get(2) in (None, b"unsynced as well")
    # Pages reach the disk in any order: a hole with a whole record behind it.
    torn.write_bytes(whole[:synced] + bytes(20) + whole[synced + 20 :])
    assert states(torn) == {1: b"promised"}


@pytest.mark.parametrize("ended", ["closed", "killed", "opened again"])
def test_flipped_bit_in_what_was_synced_is_never_a_torn_tail(path: Path, tmp_path: Path, ended: str) -> None:
    journal, _ = VoteJournal.open(path)
    for number in range(5):
        journal.put(number, b"state %d" % number)
        sync(journal)
    promised = path.stat().st_size
    if ended == "killed":
        journal.put(9, b"this one knows of the sync")
        promised = path.stat().st_size - 1
        whole = path.read_bytes()
        journal.close()
        path.write_bytes(whole)
    else:
        journal.close()
    if ended == "opened again":
        states(path)
        promised = path.stat().st_size - 29
    copy = tmp_path / "copy.log"
    last = promised if ended == "closed" else promised - 60
    for position in range(last):
        shutil.copy(path, copy)
        flip(copy, position, 1 << position % 8)
        with pytest.raises(VotesDamaged):
            VoteJournal.open(copy)


def test_journal_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "_REWRITE_BYTES_MIN", 2_000)
    journal, _ = VoteJournal.open(path)
    expected: dict[int, bytes] = {}
    for number in range(3_000):
        expected[number % 7] = b"%d" % number
        assert journal.put(number % 7, expected[number % 7]) == number + 1
        if number % 100 == 0:
            sync(journal)
        assert path.stat().st_size < 2_100
    assert states(path) == expected
    journal.close()


def test_journal_of_many_groups_is_not_written_anew_all_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "_REWRITE_BYTES_MIN", 100)
    journal, _ = VoteJournal.open(path)
    files = set()
    for number in range(2_000):
        journal.put(number % 200, b"state")
        files.add(path.stat().st_ino)
    assert len(files) < 10
    journal.close()


def test_file_of_a_running_sync_stays_open_when_the_journal_is_written_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(votes, "_REWRITE_BYTES_MIN", 300)
    journal, _ = VoteJournal.open(path)
    journal.put(1, b"before")
    point = journal.sync_point()
    for number in range(50):
        journal.put(1, b"%d" % number)
    os.fdatasync(point.files[0])
    before = journal.synced_number
    journal.synced(point)
    assert journal.synced_number == before > 1
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(point.files[0])
    journal.put(1, b"last")
    sync(journal)
    assert journal.synced_number == 52 and states(path) == {1: b"last"}
    journal.close()


def test_full_disk_refuses_a_change_and_keeps_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = VoteJournal.open(path)
    journal.put(1, b"stored")
    real = os.pwrite

    def short(fd: int, data: bytes, position: int) -> int:
        return real(fd, data[:5], position)

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    for refuse in (short, full):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", refuse)
            with pytest.raises(DiskFull):
                journal.put(1, b"refused")
    assert states(path) == {1: b"stored"}
    journal.close()


def test_journal_grows_on_where_it_cannot_be_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "_REWRITE_BYTES_MIN", 300)
    journal, _ = VoteJournal.open(path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        for number in range(100):
            journal.put(1, b"%d" % number)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageFailed):
            journal.sync_now()
    assert journal.synced_number == 0
    assert states(path) == {1: b"99"}
    journal.close()


def test_name_that_is_not_durable_is_synced_by_the_next_round(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "_REWRITE_BYTES_MIN", 300)
    journal, _ = VoteJournal.open(path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(votes, "sync_directory", fail)
        for number in range(20):
            journal.put(1, b"%d" % number)
    assert journal.synced_number == 0, "a vote counts as durable in a file whose name may be lost"
    point = journal.sync_point()
    assert point.directory == path.parent
    journal.synced(point)
    assert journal.synced_number == 20 and journal.sync_point().directory is None
    journal.close()


@examples(60, 1_000)
@given(seed=st.integers(0, 2**32))
def test_power_loss_at_any_step_forgets_no_promise(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Puts, syncs and rewrites in any order, and the power goes at any call."""
    rolled = random.Random(seed)
    root = tmp_path_factory.mktemp("votes")
    (root / "0").mkdir()
    disk = ShadowDisk(root / "0")
    promised: dict[int, bytes | None] = {}
    # Per group, what was written since; any of it may have reached the disk.
    since: dict[int, list[bytes | None]] = {}
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(votes, "_REWRITE_BYTES_MIN", rolled.choice([100, 500, 10_000]))
            for generation in range(scaled(4, 8)):
                directory = root / str(generation)
                must_exist = bool(promised)
                journal = None
                with contextlib.suppress(Crashed), disk.fail_at(rolled.choice([3, 10, 30, 100])):
                    journal, found = VoteJournal.open(directory / "votes.log", must_exist=must_exist)
                    for group in promised.keys() | since.keys():
                        allowed = [promised.get(group), *since.get(group, [])]
                        assert found.get(group) in allowed, "a vote is forgotten, or was never given"
                    promised, since = dict(found), {}
                    for number in range(rolled.randrange(40)):
                        group = rolled.randrange(4)
                        state = None if rolled.random() < 0.2 else b"%d/%d" % (generation, number)
                        since.setdefault(group, []).append(state)
                        if state is None:
                            journal.forget(group)
                        else:
                            journal.put(group, state)
                        if rolled.random() < 0.3:
                            sync(journal)
                        if journal.synced_number == journal.written_number:
                            promised |= {group: states[-1] for group, states in since.items()}
                            since = {}
                image = root / str(generation + 1)
                disk.image(image, rolled)
                if journal is not None:
                    with disk.fail_at(0), contextlib.suppress(Crashed):
                        journal.close()
                disk.move_to(image)
    finally:
        disk.close()
