"""What brokers spilled is stored once and in order: held against plain Python, on random directories."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession
from testkit.postgres import database_for

import holdfast
from holdfast import pipelines
from holdfast.backends.spill import events, files
from holdfast.backends.spill.files import SpillDirectory
from holdfast.backends.spill.inspecting import exported_failed
from holdfast.backends.spill.log_target import progress_path
from holdfast.model.errors import DataDirectoryError, TopicExists
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.node.config import Config
from holdfast.node.replaying import replay
from holdfast.pipelines import recover_brokers
from holdfast.recovery.errors import RecoveryChanged, RecoveryUnsure
from holdfast.recovery.steps import Stream
from holdfast.wire import batch_builder
from tests.postgres.stores import open_store, query
from tests.spark.recover_by_hand import PARTITIONS, Line, Place, Spills

CASES = 60
COUNTS = ("files", "events", "stored", "duplicates", "already_stored", "set_aside")
_VALUES = """
SELECT t.name, m.partition, m.value FROM holdfast.messages m JOIN holdfast.topics t USING (topic_id)
WHERE m.value <> 'in the store' ORDER BY m.topic_id, m.partition, m."offset"
"""


def run(asked: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asked)


async def stored(url: str) -> dict[Place, list[bytes]]:
    found: dict[Place, list[bytes]] = {}
    for topic, partition, value in await query(url, _VALUES):
        found.setdefault((topic, partition), []).append(value)
    return found


def some_with_ids(spills: Spills) -> list[Line]:
    wanted = {
        line.place: line
        for file in spills.files
        for line in file.lines
        if line.is_good and line.id and line.number == 1
    }
    return list(wanted.values())[::3]


async def prepare(url: str, spills: Spills) -> set[tuple[str, int, str]]:
    """Some messages are in the store before, a part of some files is, and no id is remembered any more."""
    opened = await open_store(url)
    known = set()
    for line in some_with_ids(spills):
        with contextlib.suppress(TopicExists):
            await opened.create(line.queue, PARTITIONS)
        await opened.broker.publish(line.queue, [NewMessage(value=b"in the store", id=line.id)], line.number)
        known.add((*line.place, str(line.id)))
    await opened.backend.stop()
    statement = "INSERT INTO holdfast.writers (writer_id, number) VALUES ($1, $2)"
    for file in spills.files:
        if file.stored:
            await query(url, statement, file.id, file.stored)
    await query(url, "TRUNCATE holdfast.id_keys")
    return known


def test_spills_are_stored_as_plain_python_says(spark: SparkSession, tmp_path: Path) -> None:
    """Copies, damage, torn ends, tied clocks, lines without ids, and what the store or a broker has done already."""
    url = database_for(tmp_path)
    spills = Spills(tmp_path / "spills", random.Random(20261118), CASES)
    spills.write()
    known = run(prepare(url, spills))
    told: list[str] = []
    verdict = pipelines.recover(spark, spills.directories, store=url, partitions=PARTITIONS, tell=told.append)
    values, counts = spills.expected(known)
    assert run(stored(url)) == values
    assert {name: verdict.counts[name] for name in COUNTS} == {name: counts[name] for name in COUNTS}
    assert min(counts[name] for name in COUNTS[1:]) > 10, "there was some of everything"
    assert sum(each["stored"] for each in verdict.queues.values()) == counts["stored"]
    assert told[0] == "taking files over" and told[-1] == "giving files back"
    set_aside = [line for path in spills.directories for line in exported_failed(Path(path))]
    assert len(set_aside) == counts["set_aside"] == verdict.failed and all(b'"reason"' in line for line in set_aside)

    # Nothing waits any more; and a file that somebody puts back is known, be it by a recovery or by a broker.
    again = pipelines.recover(spark, spills.directories, store=url)
    assert again.as_json() == {**dict.fromkeys(COUNTS, 0), "failed": counts["set_aside"], "queues": {}}
    kept = next(file for file in spills.files if len(file.lines) > 30 and file is not spills.queen)
    recovered = kept.directory / "recovered" / kept.name
    shutil.copy(recovered, kept.directory)
    again = pipelines.recover(spark, [str(kept.directory)], store=url)
    assert (again.counts["already_stored"], again.counts["stored"]) == (len(kept.lines), 0)
    broker = tmp_path / "started again"
    broker.mkdir()
    shutil.copy(recovered, broker / kept.name)
    config = Config(store=url, data=str(tmp_path / "data"), spill_dir=str(broker))
    replayed = run(replay(config, broker, is_with_failed=False, timeout_s=60, on_progress=lambda _: None))
    assert replayed.stored == 0 and not files.listed(broker)
    assert run(stored(url)) == values


def test_spill_in_use_is_refused_and_left_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    url = database_for(tmp_path)
    spills = Spills(tmp_path / "spills", random.Random(1), 1)
    spills.write()
    before = sorted(path.name for path in spills.files[-1].directory.glob("*.buf"))
    in_use = SpillDirectory.open(spills.files[-1].directory)
    try:
        with pytest.raises(DataDirectoryError, match="stop the broker first"):
            pipelines.recover(spark, spills.directories, store=url)
    finally:
        in_use.close()
    assert sorted(path.name for path in spills.files[-1].directory.glob("*.buf")) == before


def test_spills_are_stored_through_brokers_just_as_well(
    spark: SparkSession, broker: holdfast.BlockingClient, servers: str, tmp_path: Path
) -> None:
    """In transactions, so that lines without ids are stored once; ids are held against what the topics have."""
    spills = Spills(tmp_path / "spills", random.Random(8), CASES // 4, "brokers")
    spills.write()
    known = set()
    for line in some_with_ids(spills):
        broker.create_topic(line.queue, partitions=PARTITIONS, exist_ok=True)
        broker.publish(line.queue, b"in the store", id=line.id, partition=line.number)
        known.add((*line.place, str(line.id)))
    for file in spills.files:
        if file.stored:
            note = progress_path(file.directory, file.id)
            note.write_text(f'{{"done":{file.stored},"trying":{file.stored + 1}}}')
    with pytest.raises(RecoveryUnsure):
        pipelines.recover(spark, spills.directories, servers=servers, partitions=PARTITIONS)
    verdict = pipelines.recover(
        spark, spills.directories, servers=servers, partitions=PARTITIONS, allow_duplicates=True
    )
    values, counts = spills.expected(known)
    found = {
        (topic.topic, number): messages
        for topic in broker.topics()
        if topic.topic.startswith("brokers-")
        for number in range(PARTITIONS)
        if (messages := [each.value for each in broker.read(topic.topic, number) if each.value != b"in the store"])
    }
    assert found == values
    assert {name: verdict.counts[name] for name in COUNTS} == {name: counts[name] for name in COUNTS}
    assert pipelines.recover(spark, spills.directories, servers=servers).counts["files"] == 0

    # A task that has slept over the end, with the first step of a stream, stores nothing.
    [recovery] = {UUID(each.writer[8:40]) for each in broker.writers() if each.writer.startswith("recover-")}
    late = recover_brokers.BrokersStore(servers)
    queue, number = min(values)
    text, _ = events.lines_of(PartitionId(TopicName(queue), number), batch_builder.build_values([b"again"], 5), 5)
    again = [event for event in events.events_of(text)[0] if event is not None]
    with contextlib.closing(late), pytest.raises(RecoveryChanged, match="over"):
        late.store(Stream(recovery, queue, number), 0, 1, again)
    # An hour later nobody comes any more.
    ledger = recover_brokers.BrokersLedger(servers, now_s=lambda: time.time() + 2 * 3600)
    with contextlib.closing(ledger):
        ledger.begin(other := uuid4())
    assert {each.writer for each in broker.writers()} >= {f"recover-{other.hex}"}
    assert not [each for each in broker.writers() if recovery.hex in each.writer]
    broker.forget_writer(f"recover-{other.hex}")
