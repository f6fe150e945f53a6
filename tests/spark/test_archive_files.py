"""The directory of an archive: a commit counts whole or not at all, wherever its writer dies, and views follow."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from testkit.crashes import Crashed, CrashPoint

from holdfast.model.errors import HoldfastError
from holdfast.spark import archive_files
from holdfast.spark.archive_files import ArchiveReader, ArchiveWriter
from holdfast.spark.archive_format import ArchivedFile, ArchivedTopic, Commit, Extent, State

ROWS = 10
# Topics and their hours of which a batch has rows.
HOURS = (("t", 5), ("t", 6), ("u", 5))


def batch(writer: ArchiveWriter, hours: tuple[tuple[str, int], ...] = HOURS, **changes: Any) -> Commit:
    """A commit of a file for each hour, which are there as Spark leaves them."""
    place = writer.new_place()
    version = writer.state.version + 1
    # As this version names them, and the ones before it did.
    ending = ("rows", "parquet")[version % 2]
    added = []
    for number, (topic, hour) in enumerate(hours):
        path = place / f"_topic={topic}" / "_date=2026-11-18" / f"_hour={hour}" / f"part-{number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d/%d" % (version, number))
        path.with_name(f".{path.name}.crc").touch()
        relative = str(path.relative_to(writer.files))
        added.append(ArchivedFile(path=relative, topic=topic, date="2026-11-18", hour=hour, rows=ROWS, size_bytes=3))
    extent = Extent(start=0, end=2 * ROWS * version)
    topics = {topic: ArchivedTopic(created_ms=1, partitions={0: extent}) for topic, _ in hours}
    given = {"kind": "batch", "added": tuple(added), "topics": topics, **changes}
    return Commit(version=version, time_ms=1000 * version, **given)


def compaction(writer: ArchiveWriter) -> Commit:
    """One that replaces all files of one hour, and forgets what was replaced before."""
    replaced = tuple(file for file in writer.state.files.values() if (file.topic, file.hour) == HOURS[0])
    forgotten = tuple(writer.state.retired)
    return batch(writer, HOURS[:1], kind="compaction", topics={}, replaced=replaced, forgotten=forgotten)


def shown(directory: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in directory.glob("topic=?/date=2026-11-18/hour=0?/*.parquet"))


def counted(archive: ArchiveReader, state: State) -> list[bytes]:
    return sorted((archive.files / path).read_bytes() for path in state.files)


def sums(archive: ArchiveReader) -> list[Path]:
    return list(archive.files.rglob("*.crc"))


def same(state: State, before: State) -> bool:
    """Whether they have the same rows; one may have a note more."""
    return msgspec.structs.replace(state, version=before.version) == before and state.version - before.version in (0, 1)


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do something and die at that change of the disk; says whether there were so many."""
    changes = [(os, "link"), (os, "fsync"), (Path, "unlink"), (Path, "replace"), (Path, "rmdir")]
    with CrashPoint(step).before_calls_of(*changes):
        try:
            work()
        except Crashed:
            return True
    return False


@pytest.mark.parametrize("kind", [batch, compaction])
def test_commit_counts_whole_or_not_at_all_wherever_its_writer_is_killed(
    kind: Callable[[ArchiveWriter], Commit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a killed process all that it wrote is there; syncing is for machines.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    # So that the commit under test also writes a snapshot.
    monkeypatch.setattr(archive_files, "SNAPSHOT_EVERY", 4)
    outcomes = set()
    step = 0
    while True:
        directory = tmp_path / str(step)
        with ArchiveWriter(directory).opened() as writer:
            writer.commit(batch(writer))
            writer.commit(compaction(writer))
            writer.commit(batch(writer))
            before = writer.state
            commit = kind(writer)
            was_killed = killed_at(step, lambda: writer.commit(commit))  # noqa: B023
        reader = ArchiveReader(directory)
        found = reader.load()
        after = before.after(commit)
        assert found in (before, after), "readers see one state or the other"
        old = {b"1/1", b"1/2", b"2/0", b"3/0", b"3/1", b"3/2"}
        replaced, added = ({b"2/0", b"3/0"}, {b"4/0"}) if kind is compaction else (set(), {b"4/0", b"4/1", b"4/2"})
        seen = set(shown(directory))
        assert len(seen) == len(shown(directory)) and seen <= old | added
        assert not (seen & replaced and seen & added), "no row is there twice"
        assert seen >= old - replaced, "what was there stays"
        with ArchiveWriter(directory).opened() as writer:
            assert same(writer.state, found), "what readers saw stays"
            assert shown(directory) == counted(writer, found)
            known = found.files.keys() | found.retired.keys()
            there = {str(path.relative_to(writer.files)) for path in writer.files.rglob("part-*")}
            assert there == known and not sums(writer), "nothing is left that no commit knows"
            writer.commit(batch(writer))
            assert shown(directory) == counted(writer, writer.state) and not list(directory.rglob("*/.0*.json*"))
        outcomes.add((was_killed, found == after))
        if not was_killed:
            break
        step += 1
    assert outcomes == {(True, False), (True, True), (False, True)} and step > 10


def test_start_that_is_killed_too_changes_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def opened(directory: Path) -> State:
        with ArchiveWriter(directory).opened() as writer:
            return writer.state

    step = 0
    was_killed = True
    while was_killed:
        directory = tmp_path / str(step)
        with ArchiveWriter(directory).opened() as writer:
            writer.commit(batch(writer))
            before = writer.state
            rest = batch(writer)
        was_killed = killed_at(step, lambda: opened(directory))  # noqa: B023
        assert same(ArchiveReader(directory).load(), before)
        assert same(opened(directory), before) and shown(directory) == counted(writer, before)
        assert not any((writer.files / file.path).exists() for file in rest.added)
        step += 1
    assert step > 5


def test_sums_that_nobody_synced_are_never_beside_files_that_count(tmp_path: Path) -> None:
    """After a power loss they could be torn, and Spark would refuse a file that is whole."""
    with ArchiveWriter(tmp_path).opened() as writer:
        writer.commit(batch(writer))
        assert not sums(writer)
        for path in writer.state.files:
            (writer.files / path).with_name(f".{Path(path).name}.crc").write_bytes(b"torn")
    with ArchiveWriter(tmp_path).opened() as writer:
        assert not sums(writer) and len(counted(writer, writer.state)) == len(HOURS)


def test_snapshots_bound_the_log_and_readers_that_began_before_find_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "SNAPSHOT_EVERY", 5)
    with ArchiveWriter(tmp_path).opened() as writer:
        for _ in range(13):
            writer.commit(batch(writer))
        own = tmp_path / "_archive"
        assert len(list((own / "commits").iterdir())) == 8, "those behind the last but one snapshot"
        assert sorted(path.stem for path in (own / "snapshots").iterdir()) == [f"{5:020}", f"{10:020}"]
        assert ArchiveReader(tmp_path).load() == writer.state
        (own / "snapshots" / f"{10:020}.json").unlink()
        assert ArchiveReader(tmp_path).load() == writer.state, "the older snapshot leads to the same state"
    (own / "view").unlink()
    next(tmp_path.glob("topic=t/*/*/*.parquet")).unlink()
    with ArchiveWriter(tmp_path).opened() as writer:
        assert shown(tmp_path) == counted(writer, writer.state), "a view that nobody knows of is made anew"


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path).opened() as writer:
        with pytest.raises(HoldfastError, match="another process") as refused, ArchiveWriter(tmp_path).opened():
            pass
        assert refused.value.code == "archive_busy"
        # A file system may forget a lock: then the number of the commit decides.
        (tmp_path / "_archive" / "lock").unlink()
        with ArchiveWriter(tmp_path).opened() as other:
            other.commit(batch(other))
            with pytest.raises(HoldfastError) as fenced:
                writer.commit(batch(writer))
            assert fenced.value.code == "archive_busy" and ArchiveReader(tmp_path).load() == other.state


def test_writer_without_a_lock_never_deletes_files_that_another_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_without_a_lock() -> None:
        (tmp_path / "_archive" / "lock").unlink()
        with ArchiveWriter(tmp_path).opened():
            pass

    def check(state: State) -> None:
        assert len(counted(ArchiveReader(tmp_path), state)) == len(state.files) == len(shown(tmp_path))

    # The other comes while files are written: their commit cannot come any more.
    with ArchiveWriter(tmp_path).opened() as writer:
        writer.commit(batch(writer))
        commit = batch(writer)
        opened_without_a_lock()
        for file in commit.added:  # as if the disk had been slow
            (writer.files / file.path).parent.mkdir(parents=True, exist_ok=True)
            (writer.files / file.path).touch()
        with pytest.raises(HoldfastError) as late:
            writer.commit(commit)
        assert late.value.code == "archive_busy"
        check(ArchiveReader(tmp_path).load())
    # Their commit comes while the other looks: they count, and the other gives up.
    with ArchiveWriter(tmp_path).opened() as writer:
        commit = batch(writer)
        load = ArchiveReader.load

        def overtaken(reader: ArchiveReader) -> State:
            found = load(reader)
            if writer.state.version < commit.version:
                writer.commit(commit)
            return found

        with monkeypatch.context() as patched, pytest.raises(HoldfastError) as refused:
            patched.setattr(ArchiveReader, "load", overtaken)
            opened_without_a_lock()
        assert refused.value.code == "archive_busy"
    state = ArchiveReader(tmp_path).load()
    assert set(state.files) >= {file.path for file in commit.added}
    check(state)


def test_rest_of_a_killed_batch_that_fills_the_disk_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArchiveWriter(tmp_path).opened() as writer:
        rest = batch(writer).added[0].path
    link = os.link

    def full(source: Any, target: Any) -> None:
        if (writer.files / rest).exists() and "commits" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    with ArchiveWriter(tmp_path).opened() as writer:
        assert not (writer.files / rest).exists()
        writer.commit(batch(writer))


@pytest.mark.parametrize("where", ["commits", "topic=t"])
def test_full_disk_is_told_with_what_counts(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def full(source: Any, target: Any) -> None:
        if where in str(target):
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))
        link(source, target)

    with ArchiveWriter(tmp_path).opened() as writer:
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left on device") as told:
            patched.setattr(os, "link", full)
            writer.commit(batch(writer))
        does_count = where != "commits"
        assert told.value.errno == errno.ENOSPC and ("commit 1 counts all the same" in str(told.value)) == does_count
        assert ArchiveReader(tmp_path).load().version == does_count
        assert not list((tmp_path / "_archive" / "commits").glob(".*")), "what takes room to no end goes at once"
    with ArchiveWriter(tmp_path).opened() as writer:
        assert shown(tmp_path) == counted(writer, writer.state) == ([b"1/0", b"1/1", b"1/2"] if does_count else [])


def test_file_system_without_links_has_no_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with ArchiveWriter(tmp_path).opened() as writer:
        writer.commit(batch(writer))
        assert shown(tmp_path) == [] and ArchiveReader(tmp_path).load() == writer.state
        commit = batch(writer)
        writer.commit(commit)
        with pytest.raises(HoldfastError):
            writer._put(tmp_path / "_archive" / "commits" / f"{commit.version:020}.json", b"")


def test_damage_and_newer_formats_are_told(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path).opened() as writer:
        writer.commit(batch(writer))
    commit = tmp_path / "_archive" / "commits" / f"{1:020}.json"
    for content, words in (
        (b"{", "cannot be read.* restore the directory _archive from a copy"),
        (commit.read_bytes().replace(b'"format":1', b'"format":2'), "newer.* use that version"),
    ):
        commit.write_bytes(content)
        with pytest.raises(HoldfastError, match=words) as told:
            ArchiveReader(tmp_path).load()
        assert told.value.code == "archive_damaged"
    commit.rename(commit.with_name(f"{2:020}.json"))
    with pytest.raises(HoldfastError, match=r"a commit is missing.* restore the directory _archive") as told:
        ArchiveReader(tmp_path).load()
    assert told.value.code == "archive_damaged"


@pytest.mark.parametrize("to", ["s3a://bucket/archive", "hdfs://host:9000/archive", "hdfs:/archive"])
def test_store_that_cannot_hold_an_archive_is_refused_with_a_way_out(to: str) -> None:
    for kind in (ArchiveReader, ArchiveWriter):
        with pytest.raises(HoldfastError, match=rf"such as NFS, and not in {to[:3]}.*history\(…\).write") as elsewhere:
            kind(to)
        assert elsewhere.value.code == "bad_option"
