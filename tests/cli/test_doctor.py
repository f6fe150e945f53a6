"""`holdfast doctor`: what it finds in directories that were broken by hand, and what it never touches."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from testkit.commands import holdfast
from testkit.logs import OpenLog, abandon, flip, frame_positions, overwrite
from testkit.processes import BrokerProcess
from testkit.sizes import dice, in_memory, scaled

from holdfast.cli.advice import ADVICE
from holdfast.client import connect_blocking
from holdfast.model.errors import DataDirectoryError
from holdfast.storage.directory import DataDirectory
from holdfast.storage.doctor import Finding, InUse, Kind, examine, held, repair
from holdfast.storage.examine_log import Rehearsal
from holdfast.storage.index import SparseIndex
from holdfast.storage.log import PartitionLog
from tests.cli.program import Broker

MESSAGES = 60


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a broker leaves it: a topic of many small segments, another one, and a cursor."""
    with Broker(tmp_path_factory.mktemp("doctor"), "--segment-bytes", "4096") as broker:
        with broker.client() as client:
            for number in range(MESSAGES):
                client.publish("orders", b"%d" % number + b"." * 300)
            client.publish("other", "x")
            client.seek("orders", "reader", 50)
        broker.terminate()
        return broker.data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics" / "orders" / "0").glob("*.log"))


def only_finding(data: Path) -> Finding:
    (finding,) = examine(data).findings
    return finding


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    """All files with their content and the time of their last change."""
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def served_values(data: Path, topic: str = "orders") -> list[bytes]:
    """What a broker that starts on the directory serves of a topic."""
    log = OpenLog(data / "topics" / topic / "0")
    values, _ = log.served()
    abandon(log.log)
    return list(values.values())


# --- clean --------------------------------------------------------------------------------------------


def test_clean_directory(data: Path) -> None:
    before = fingerprint(data)
    shown = holdfast("doctor", str(data))
    assert shown.code == 0, shown
    assert "All is well." in shown.text and "2 topics, 2 partitions" in shown.text and "61 messages" in shown.text
    report = holdfast("doctor", str(data), "--json").json
    assert report["clean"] is True and report["findings"] == []
    assert report["messages"] == MESSAGES + 1 and report["node"] == "n1"
    assert report["segments"] > 5 and report["indexes"] == report["segments"]
    assert fingerprint(data) == before


def test_killed_broker_leaves_a_clean_directory(own_broker: Broker) -> None:
    own_broker.ok("publish", "t", given=b"1\n2\n3\n")
    own_broker.ok("subscribe", "t", "--as", "reader", "--from", "earliest", "--count", "2")
    own_broker.kill()
    before = fingerprint(own_broker.data)
    assert examine(own_broker.data).findings == []
    assert fingerprint(own_broker.data) == before


def test_directory_in_use_is_refused_unless_only_looked_at(own_broker: Broker) -> None:
    own_broker.ok("publish", "t", "x")
    for options in ((), ("--repair",)):
        refused = holdfast("doctor", str(own_broker.data), *options)
        assert refused.code == 2
        assert "is in use by a broker (process " in refused.err and "--read-only" in refused.err
    looked = holdfast("doctor", str(own_broker.data), "--read-only", "--json")
    assert looked.code == 0 and looked.json["messages"] == 1 and looked.json["in_use"] is True
    assert own_broker.run("check").code == 0


def test_nobody_starts_a_broker_while_the_doctor_looks(data: Path) -> None:
    with held(data), held(data), pytest.raises(DataDirectoryError, match="in use"):
        DataDirectory.open(data, node="n1", now_ms=0)
    with held(data, for_repair=True), pytest.raises(InUse), held(data):
        pass


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    other_format = tmp_path / "other"
    other_format.mkdir()
    (other_format / "holdfast.json").write_text('{"format": 99, "node": "n1", "created_ms": 0}')
    for place, said in (
        (tmp_path / "nowhere", "is not a data directory"),
        (tmp_path, "is not a data directory"),
        (tmp_path / "file", "Not a directory"),
        (other_format, "was written in format 99"),
    ):
        ended = holdfast("doctor", str(place))
        assert ended.code == 2, ended
        assert said in ended.err


# --- torn tails -----------------------------------------------------------------------------------------


def test_torn_tail_is_found_and_cut_only_when_asked(data: Path) -> None:
    newest = segments(data)[-1]
    whole = newest.stat().st_size
    with newest.open("ab") as file:
        file.write(newest.read_bytes()[:100])
    found = holdfast("doctor", str(data), "--read-only")
    assert found.code == 1
    assert "torn tail" in found.text and "1 finding left." in found.text
    assert newest.stat().st_size == whole + 100

    repaired = holdfast("doctor", str(data), "--repair")
    assert repaired.code == 0
    assert f"Done: cut 100 bytes; the file now ends at byte {whole}." in repaired.text
    assert newest.stat().st_size == whole
    assert examine(data).findings == []


def test_cutting_keeps_the_proof_that_stood_behind_the_tear(tmp_path: Path) -> None:
    """Only a whole frame behind the tear knows of a sync; without it, damage before would pass for a torn tail."""
    data = tmp_path / "data"
    log = OpenLog(data / "topics" / "t" / "0", segment_bytes=600)
    while len(log.segment_files()) < 2:
        log.append(b"first segment" + bytes(100))
    log.sync()
    log.append(b"lost")
    log.append(b"knows of the sync")
    abandon(log.log)
    for index in log.index_files():
        index.unlink()
    sealed, newest = log.segment_files()
    flip(sealed, sealed.stat().st_size - 10)
    start, end = frame_positions(newest)[1]
    overwrite(newest, start, bytes(end - start))
    expected = PartitionLog.open(Path(shutil.copytree(log.directory, tmp_path / "started")))[1]

    report = examine(data)
    repair(data, report)
    assert [each.kind for each in report.findings if each.repaired] == [Kind.TORN_TAIL]
    recovery = log.reopen()
    assert recovery.holes == expected.holes and recovery.deleted_segments == expected.deleted_segments == []


def test_segment_begun_too_early_is_told_and_left_to_the_broker(data: Path) -> None:
    *_, newest = segments(data)
    frame = newest.read_bytes()
    end = examine(data).messages - 1
    early = newest.with_name(f"{end + 10:020d}-{end + 10:020d}.log")
    early.write_bytes(frame[:20])
    finding = next(each for each in examine(data).findings if each.kind is Kind.EARLY_SEGMENT)
    assert finding.file.endswith(early.name)


# --- damage ---------------------------------------------------------------------------------------------


def test_damage_in_the_middle_is_told_and_never_touched(data: Path) -> None:
    middle = segments(data)[3]
    first = int(middle.name[:20])
    flip(middle, 200)
    before = fingerprint(data)
    ended = holdfast("doctor", str(data), "--repair", "--json")
    assert ended.code == 1
    (finding,) = ended.json["findings"]
    assert finding["kind"] == "damaged_batches" and finding["repaired"] is None
    assert (finding["first_offset"], finding["next_offset"]) == (first, first + 1)
    assert finding["file"].endswith(middle.name) and "copy" in finding["action"]
    assert fingerprint(data) == before
    expected = [b"%d" % number + b"." * 300 for number in range(MESSAGES) if number != first]
    assert served_values(data) == expected


def test_repair_leaves_what_stands_behind_damage_in_the_newest_segment(data: Path) -> None:
    """Five messages were synced together before a clean stop; none but the index that the stop has left knows it."""
    log = OpenLog(data / "topics" / "other" / "0")
    for number in range(1, 6):
        log.append(b"%d" % number)
    log.sync()
    log.close()
    (newest,) = log.segment_files()
    flip(newest, frame_positions(newest)[1][1] - 3)
    before = fingerprint(data)
    for options in ((), ("--repair",)):
        ended = holdfast("doctor", str(data), "--json", *options)
        assert ended.code == 1
        (finding,) = ended.json["findings"]
        assert finding["kind"] == "damaged_batches" and finding["repaired"] is None
        assert (finding["first_offset"], finding["next_offset"]) == (1, 2)
        assert fingerprint(data) == before
    assert served_values(data, "other") == [b"x", b"2", b"3", b"4", b"5"]


def test_sealed_segment_that_was_cut(data: Path) -> None:
    sealed, following = segments(data)[3:5]
    content = sealed.read_bytes()
    sealed.write_bytes(content[: content.rindex(b"HF\x01")])
    kinds = {finding.kind: finding for finding in examine(data).findings}
    assert set(kinds) == {Kind.BAD_INDEX, Kind.MISSING_OFFSETS}
    assert kinds[Kind.MISSING_OFFSETS].next_offset == int(following.name[:20])


def test_nothing_is_cut_where_a_broker_could_not_start(data: Path) -> None:
    _, unreadable, *_, newest = segments(data)
    unreadable.unlink()
    unreadable.mkdir()
    with newest.open("ab") as file:
        file.write(b"torn")
    before = fingerprint(data)
    report = examine(data)
    repair(data, report)
    assert [(each.kind, Path(each.file).name) for each in report.problems] == [(Kind.UNREADABLE, unreadable.name)]
    assert fingerprint(data) == before


def test_segment_that_does_not_belong_here(data: Path) -> None:
    second, third = segments(data)[1:3]
    second.rename(second.with_name(f"{int(second.name[:20]) - 2:020d}{second.name[20:]}"))
    assert Kind.OVERLAPPING_SEGMENT in {finding.kind for finding in examine(data).findings}
    assert third.exists()


# --- indexes --------------------------------------------------------------------------------------------


def test_corrupt_index_is_rebuilt_when_asked(data: Path) -> None:
    index = segments(data)[2].with_suffix(".index")
    good = index.read_bytes()
    flip(index, 60)
    found = holdfast("doctor", str(data))
    assert found.code == 1 and "bad index" in found.text
    repaired = holdfast("doctor", str(data), "--repair")
    assert repaired.code == 0 and "rebuilt from its segment" in repaired.text
    assert index.read_bytes() == good


def test_index_of_another_segment_is_found_out(data: Path) -> None:
    """Its checksum is right and so is the size it was made for: only the log itself tells."""
    one, *others = (path for path in segments(data)[:-1] if path.stat().st_size == segments(data)[3].stat().st_size)
    one.with_suffix(".index").write_bytes(others[0].with_suffix(".index").read_bytes())
    report = examine(data)
    assert [finding.kind for finding in report.findings] == [Kind.BAD_INDEX]
    repair(data, report)
    assert report.problems == []
    assert examine(data).findings == []


def test_damaged_index_of_the_newest_segment_is_rebuilt_as_that_of_an_open_one(data: Path) -> None:
    index = segments(data)[-1].with_suffix(".index")
    good = index.read_bytes()
    flip(index, 20)
    report = examine(data)
    assert [finding.kind for finding in report.findings] == [Kind.BAD_INDEX]
    repair(data, report)
    assert index.read_bytes() == good
    loaded = SparseIndex.load(index, None)
    assert loaded is not None and not loaded[0].is_sealed


def test_index_from_before_the_segment_grew_is_sound(data: Path) -> None:
    """Such indexes are left by a crash: made when the log was opened, and true. Made anew they would prove too much."""
    log = OpenLog(data / "topics" / "other" / "0", segment_bytes=400)
    while len(log.segment_files()) < 3:
        log.append(bytes(100))
    abandon(log.log)
    before = fingerprint(data)
    report = examine(data)
    repair(data, report)
    assert report.findings == []
    assert fingerprint(data) == before


def test_missing_index_is_nothing(data: Path) -> None:
    for segment in segments(data)[:-1]:
        segment.with_suffix(".index").unlink()
    assert examine(data).findings == []


# --- the doctor and the broker ----------------------------------------------------------------------------


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory whose syncs cost nothing; on a busy disk, thousands of them take minutes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-", dir=in_memory()) as place:
        yield Path(place)


def test_doctor_and_broker_never_disagree(quick_path: Path) -> None:
    """Logs with any past and any damage.

    The rehearsal says what a start does, the findings name what a reader misses, and a repair takes nothing.
    """
    rolled = dice("doctor and broker")
    for round_number in range(scaled(150, 1500)):
        data = quick_path / str(round_number)
        directory = data / "topics" / "t" / "0"
        _live(directory, rolled)
        for _ in range(rolled.randrange(4)):
            _hurt(directory, rolled)
        before = fingerprint(data)
        rehearsal = Rehearsal(directory)
        rehearsal.run()
        report = examine(data)
        assert fingerprint(data) == before, "looking has changed something"

        started = OpenLog(Path(shutil.copytree(directory, quick_path / "started")))
        torn_bytes = sum(segment.torn_bytes for segment in rehearsal.all_segments)
        dropped = [segment.path.name for segment in rehearsal.dropped]
        assert (torn_bytes, dropped) == (started.recovery.torn_bytes, started.recovery.deleted_segments)
        told_bytes = sum(each.size_bytes or 0 for each in report.findings if each.kind is Kind.TORN_TAIL)
        early = [Path(each.file).name for each in report.findings if each.kind is Kind.EARLY_SEGMENT]
        assert (told_bytes, early) == (torn_bytes, dropped)
        damaged = [each for each in report.findings if each.kind in (Kind.DAMAGED_BATCHES, Kind.MISSING_OFFSETS)]
        told = {offset for each in damaged for offset in range(each.first_offset or 0, each.next_offset or 0)}
        assert told == {offset for first, following in started.served()[1] for offset in range(first, following)}

        repair(data, report)
        for kind in (Kind.TORN_TAIL, Kind.BAD_INDEX):
            assert all(each.repaired for each in report.findings if each.kind is kind)
        repaired = OpenLog(directory)
        assert repaired.recovery.torn_bytes == 0, "the doctor left something to cut"
        assert repaired.recovery.deleted_segments == dropped
        assert repaired.log.written_end == started.log.written_end
        assert repaired.served() == started.served()
        abandon(repaired.log)
        abandon(started.log)
        shutil.rmtree(quick_path / "started")
        shutil.rmtree(data)


def _live(directory: Path, rolled: random.Random) -> None:
    """The life of a log: appends, syncs, kills and clean stops."""
    log = OpenLog(directory, segment_bytes=rolled.choice((1, 300, 1000, 10_000)))
    for _ in range(rolled.randrange(1, 25)):
        deed = rolled.random()
        if deed < 0.6:
            log.append(bytes([rolled.randrange(256)]) * rolled.randrange(1, 150))
        elif deed < 0.9:
            log.sync()
        elif deed < 0.95:
            log.reopen()
        else:
            log.sync()
            log.close()
            log = OpenLog(directory, segment_bytes=log.segment_bytes)
    if rolled.random() < 0.5:
        log.sync()
        log.close()
    else:
        abandon(log.log)


def _hurt(directory: Path, rolled: random.Random) -> None:
    files = [path for path in sorted(directory.iterdir()) if path.stat().st_size]
    if not files:
        return
    path = rolled.choice((*files, files[-1]))
    size = path.stat().st_size
    deed = rolled.random()
    if deed < 0.4:
        flip(path, rolled.randrange(size))
    elif deed < 0.6:
        os.truncate(path, rolled.randrange(size))
    elif deed < 0.8:
        path.write_bytes(path.read_bytes() + rolled.choice((bytes(50), rolled.randbytes(80), path.read_bytes()[:60])))
    elif path.suffix == ".index":
        path.unlink()
    else:
        start = rolled.randrange(size)
        content = path.read_bytes()
        path.write_bytes(content[:start] + bytes(min(100, size - start)) + content[start + 100 :])


# --- state and identity -----------------------------------------------------------------------------------


def test_corrupt_state_is_told_and_the_broker_finds_the_topics_again(data: Path, tmp_path: Path) -> None:
    state = data / "state.sqlite"
    state.write_bytes(b"\xff" * state.stat().st_size)
    ended = holdfast("doctor", str(data), "--repair")
    assert ended.code == 1
    assert "state damaged" in ended.text and "sets the file aside" in ended.text
    assert state.read_bytes()[:4] == b"\xff" * 4
    with BrokerProcess(data, files=tmp_path) as broker, connect_blocking(broker.server) as client:
        assert {each.topic: each.messages for each in client.topics()} == {"orders": MESSAGES, "other": 1}
    assert [finding.kind for finding in examine(data).findings] == [Kind.STATE_SET_ASIDE]
    assert examine(data).problems == []


def test_missing_state(data: Path) -> None:
    (data / "state.sqlite").unlink()
    assert only_finding(data).kind is Kind.STATE_MISSING


def test_state_that_does_not_fit_the_topics(data: Path) -> None:
    with closing(sqlite3.connect(data / "state.sqlite")) as connection, connection:
        connection.execute("DELETE FROM topics WHERE name = 'other'")
        connection.execute("UPDATE topics SET config = replace(config, '\"partitions\":1', '\"partitions\":2')")
        connection.execute("UPDATE cursors SET offset = 1000")
    kinds = {finding.kind: finding.detail for finding in examine(data).findings}
    assert set(kinds) == {Kind.TOPIC_NOT_IN_STATE, Kind.PARTITION_MISSING, Kind.CURSOR_BEYOND_END}
    assert kinds[Kind.CURSOR_BEYOND_END] == "reader stands at 1000 in orders/0, which ends at 60"


def test_topic_directory_that_is_gone(data: Path) -> None:
    shutil.rmtree(data / "topics" / "other")
    finding = only_finding(data)
    assert (finding.kind, finding.file) == (Kind.PARTITION_MISSING, "topics/other")


def test_identity(data: Path) -> None:
    (data / "holdfast.json").write_text("{")
    assert only_finding(data).kind is Kind.IDENTITY_DAMAGED
    (data / "holdfast.json").unlink()
    assert only_finding(data).kind is Kind.IDENTITY_MISSING


def test_strays_are_notes_and_no_findings(data: Path) -> None:
    (data / "topics" / "orders" / "0" / "backup.tar").write_text("x")
    (data / "topics" / "half-made" / "0").mkdir(parents=True)
    report = examine(data)
    assert [finding.kind for finding in report.findings] == [Kind.STRAY_FILE, Kind.STRAY_FILE]
    assert report.problems == []


def test_bad_topic_file(data: Path) -> None:
    (data / "topics" / "orders" / "topic.json").write_text("nonsense")
    assert only_finding(data).kind is Kind.TOPIC_FILE_BAD


def test_every_finding_has_advice() -> None:
    assert set(ADVICE) == set(Kind)
