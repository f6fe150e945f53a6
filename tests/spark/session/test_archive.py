"""The archive holds every message once, as it was; `history` joins it with the log while both move."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from testkit.wait import wait_until

import holdfast
import holdfast.spark
from holdfast import NewMessage, pipelines
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import archive_rules, archiving
from holdfast.pipelines.streams import StreamRun
from holdfast.spark import archive_history
from holdfast.spark.archive_files import ArchiveReader
from holdfast.spark.archive_history import archived_rows
from holdfast.testing import LocalCluster
from tests.spark.session.conftest import Reading

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "id")


def contents(rows: DataFrame) -> list[tuple[Any, ...]]:
    """All rows in the order of their places."""
    return sorted(map(tuple, rows.select(*COLUMNS).collect()), key=lambda row: row[:3])


def messages(name: str, count: int) -> list[NewMessage]:
    some: list[NewMessage] = []
    for number in range(count):
        headers = (("kind", name.encode()),) if number % 3 else ()
        key = b"k%d" % (number % 7) if number % 2 else None
        some.append(
            NewMessage(value=b"%s %d" % (name.encode(), number), key=key, id=f"{name}-{number}", headers=headers)
        )
    return some


@pytest.fixture(scope="module")
def expiring() -> Iterator[LocalCluster]:
    """A broker whose retention is quick, and waits for one reader."""
    settings: dict[str, str | int] = {"segment_bytes": 4096, "retention_check_ms": 20, "retention_waits_for": "keeper"}
    with LocalCluster(nodes=1, settings=settings) as started:
        yield started


def test_archive_has_every_message_once_and_compaction_changes_none(
    reading: Reading, broker: holdfast.BlockingClient, servers: str, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    topic = reading.topic = f"{topic}/grün: 50% off"
    broker.create_topic(topic, partitions=2)
    to = str(tmp_path / "archive")

    def archived(**options: Any) -> StreamRun:
        return pipelines.archive(spark, [topic], to=to, servers=servers, **options)

    broker.publish_many(topic, messages("first", 60))
    assert archived(batch_bytes=1000).rows == 60
    many = ArchiveReader(to).load()
    assert many.version > 2 and len(many.files) > 2, "there were several batches"
    for path in many.files:
        # As a power loss leaves sums that nobody synced.
        written = Path(to) / "_archive" / "files" / path
        written.with_name(f".{written.name}.crc").write_bytes(b"torn")
    broker.publish_many(topic, [b"second"])
    lines: list[str] = []
    done = archived(compact_files=2, tell=lines.append)
    assert (done.rows, done.lag) == (1, 0) and any("compacts" in line for line in lines)
    state = ArchiveReader(to).load()
    assert len(state.files) == 1 < len(state.retired) and state.version > many.version + 1
    assert {file.topic for file in state.files.values()} == {topic}
    log = contents(reading.batch(includeHeaders=True))
    assert len(log) == 61
    assert contents(holdfast.spark.history(topic, archive=to, servers=None, spark=spark)) == log
    # Whoever knows nothing of commits finds the same rows, and directories that say topic, date and hour.
    plain = spark.read.parquet(to)
    assert contents(plain) == log and {"date", "hour"} <= set(plain.columns)
    assert plain.where("date != date(timestamp) OR hour != hour(timestamp)").count() == 0
    wait_until(lambda: broker.cursor(topic, "archive").lag == 0, "the cursor stands at the end")
    # Replaced files go when nobody may read them any more.
    broker.publish_many(topic, [b"third"])
    # A cursor that stands ahead, as of an archive that was begun anew, is put back before anything else is done.
    broker.seek(topic, "archive", "latest")
    stop = threading.Event()
    stop.set()
    assert archived(once=False, stop=stop).is_stopped and broker.cursor(topic, "archive").lag == 1
    assert archived(keep_replaced_s=0).rows == 1
    swept = ArchiveReader(to).load()
    assert not swept.retired and len(list((tmp_path / "archive" / "_archive" / "files").rglob("*.rows"))) == 2


def test_bit_that_flipped_in_a_file_is_noticed_by_whoever_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    values = [f"{number:08d}" for number in range(1000)]
    rows = spark.createDataFrame([(bytearray(value.encode()),) for value in values], "value binary").coalesce(1)
    rows.write.option("compression", "none").parquet(str(tmp_path / "rows"))
    [path] = (tmp_path / "rows").glob("*.parquet")
    path.with_name(f".{path.name}.crc").unlink()
    assert archived_rows(spark, [str(path)]).where("value IS NOT NULL").count() == 1000
    path.write_bytes(path.read_bytes().replace(b"00000500", b"00000501", 1))
    found = {bytes(row.value).decode() for row in spark.read.parquet(str(path)).collect()}
    assert found == set(values) - {"00000500"}, "Spark alone takes it as it is"
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        archived_rows(spark, [str(path)]).collect()


def test_history_joins_archive_and_log_while_both_move(
    spark: SparkSession, expiring: LocalCluster, tmp_path: Path
) -> None:
    """Messages come, the archive takes them and compacts, and retention deletes nearly all that it has taken."""
    servers, to = expiring.url.removeprefix("holdfast://"), str(tmp_path)
    stop = threading.Event()
    with expiring.connect_blocking() as broker:
        broker.create_topic("moving", partitions=2, retention_bytes=40_000)
        broker.publish_many("moving", messages("m0", 100))
        ended: list[StreamRun] = []

        def archive() -> None:
            options: dict[str, Any] = {"once": False, "interval_s": 0.05, "compact_files": 2, "stop": stop}
            ended.append(pipelines.archive(spark, ["moving"], to=to, servers=servers, **options))

        archiving = threading.Thread(target=archive)
        archiving.start()
        sent = 100
        try:
            wait_until(lambda: bool(ArchiveReader(to).load().files), "something is archived")
            for number in range(1, 5):
                # Retention takes what the archive has, and never what it has not: it gets no further than that.
                for part in range(3):
                    broker.publish_many("moving", messages(f"m{number}-{part}", 150))
                    sent += 150
                    wait_until(lambda: broker.cursor("moving", "archive").lag < 200, "the archive keeps up")
                rows = holdfast.spark.history("moving", archive=to, servers=servers, spark=spark)
                found = rows.selectExpr(
                    "count(*)", "count(DISTINCT partition, offset)", "count(DISTINCT id)"
                ).collect()[0]
                assert tuple(found) == (sent, sent, sent), "no gap and no overlap"
        finally:
            stop.set()
            archiving.join(60)
        assert ended and ended[0].is_stopped
        described = broker.describe("moving")
    state = ArchiveReader(to).load()
    assert any(partition.start_offset > 0 for partition in described.partitions), "retention was at work"
    assert state.retired, "and so was compaction"


def test_what_nobody_has_is_told_and_remembered(spark: SparkSession, expiring: LocalCluster, tmp_path: Path) -> None:
    servers, to = expiring.url.removeprefix("holdfast://"), str(tmp_path)

    def archive(**options: Any) -> StreamRun:
        return pipelines.archive(spark, ["late"], to=to, servers=servers, **options)

    def history(**options: Any) -> DataFrame:
        return holdfast.spark.history("late", archive=to, servers=servers, spark=spark, **options)

    def refused(work: Any) -> str:
        with pytest.raises(HoldfastError) as error:
            work()
        return error.value.code

    assert refused(history) == "bad_option", "there is no archive"
    with expiring.connect_blocking() as broker:
        broker.create_topic("late", retention_bytes=5000)
        broker.publish_many("late", [b"x" * 100] * 10)
        assert archive().rows == 10
        for _ in range(5):
            broker.publish_many("late", [b"y" * 100] * 100)
        start = 410
        wait_until(lambda: broker.describe("late").partitions[0].start_offset == start, "all but the last expired")
        assert refused(archive) == "data_lost" == refused(history)
        kept = 10 + 510 - start
        assert history(allow_gaps=True).count() == kept
        assert archive(allow_gaps=True).rows == kept - 10
        assert ArchiveReader(to).load().topics["late"].partitions[0].gaps == ((10, start),)
        assert refused(history) == "data_lost"
        broker.delete_topic("late")
        # What is archived outlives its topic; and another one of that name is another one.
        assert history(allow_gaps=True).count() == kept
        broker.create_topic("late")
        assert refused(lambda: archive(allow_gaps=True)) == "archive_mismatch" == refused(history)
        broker.publish("later", b"x")
        with pytest.raises(HoldfastError, match=r"'\(\?!late\$\)…', the others go on"):
            pipelines.archive(spark, pattern="late.*", to=to, servers=servers)
        assert pipelines.archive(spark, pattern="(?!late$)late.*", to=to, servers=servers).rows == 1
    assert refused(lambda: pipelines.archive(spark, ["nobody-made-this"], to=to, servers=servers)) == "topic_not_found"


def test_retention_keeps_what_is_not_archived_yet(spark: SparkSession, expiring: LocalCluster, tmp_path: Path) -> None:
    servers = expiring.url.removeprefix("holdfast://")
    with expiring.connect_blocking() as broker:
        broker.create_topic("kept", retention_bytes=5000)
        broker.publish_many("kept", [b"x" * 100] * 10)

        def archive() -> int:
            return pipelines.archive(spark, ["kept"], to=str(tmp_path), servers=servers, group="keeper").rows

        def start() -> int:
            return broker.describe("kept").partitions[0].start_offset

        assert archive() == 10
        broker.create_topic("not-kept", retention_bytes=5000)
        for topic in ("kept", "not-kept"):
            for _ in range(5):
                broker.publish_many(topic, [b"y" * 100] * 100)
        wait_until(lambda: broker.describe("not-kept").partitions[0].start_offset == 400, "retention is at work")
        wait_until(lambda: start() == 10, "what is archived went")
        assert archive() == 500, "and nothing else"
        wait_until(lambda: start() == 410, "now it is archived, and goes")


def test_history_never_has_rows_of_a_topic_that_was_made_anew_since_the_call(
    broker: holdfast.BlockingClient, servers: str, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create_topic(topic)
    broker.publish_many(topic, messages("old", 10))
    assert pipelines.archive(spark, [topic], to=str(tmp_path), servers=servers).rows == 10
    broker.publish_many(topic, messages("behind", 5))
    rows = holdfast.spark.history(topic, archive=str(tmp_path), servers=servers, spark=spark, allow_gaps=True)
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.publish_many(topic, messages("new", 15))
    with pytest.raises(PySparkException, match=r"\[data_lost\] the topic .* was deleted and made anew"):
        rows.count()


@pytest.mark.night
def test_rows_that_are_lost_on_the_way_to_a_file_are_never_taken_for_a_gap(
    broker: holdfast.BlockingClient,
    servers: str,
    topic: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic(topic)
    broker.publish_many(topic, messages("m", 20))

    def archive() -> int:
        return pipelines.archive(spark, [topic], to=str(tmp_path), servers=servers, allow_gaps=True).rows

    def gaps() -> tuple[tuple[int, int], ...]:
        return ArchiveReader(tmp_path).load().topics[topic].partitions[0].gaps

    with monkeypatch.context() as patched:
        placed = archive_rules.placed
        patched.setattr(archive_rules, "placed", lambda rows: placed(rows).where("offset != 7"))
        with pytest.raises(HoldfastError, match="20 were read, and 19 were written") as refused:
            archive()
    assert refused.value.code == "data_lost" and not ArchiveReader(tmp_path).load().topics
    assert archive() == 20 and gaps() == (), "they are in the log still"
    broker.publish_many(topic, messages("n", 20))
    read = archive_history.live_rows
    # As if it expired, or was damaged, when it was planned already.
    monkeypatch.setattr(archiving, "live_rows", lambda *given, **more: read(*given, **more).where("offset != 27"))
    assert archive() == 19 and gaps() == ((27, 28),)
