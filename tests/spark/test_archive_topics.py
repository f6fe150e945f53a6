"""Topics come and go while an archive is written: what it asks the brokers, and what it remembers of the answers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.model.errors import HoldfastError
from holdfast.pipelines.archive_settings import ArchiveSettings
from holdfast.pipelines.archiving import Archiver
from holdfast.spark import broker_places
from holdfast.spark.archive_files import ArchiveWriter
from holdfast.spark.archive_format import ArchivedTopic, Commit, Extent
from holdfast.spark.broker_places import PartitionPlace
from holdfast.spark.options import parse_options
from holdfast.testing import LocalCluster
from tests.spark.scripted import FakeNode


def test_archive_of_a_pattern_goes_on_without_a_broker_when_one_of_its_topics_was_deleted_before(
    tmp_path: Path,
) -> None:
    second = FakeNode(None)
    nodes = {"holdfast://a:1,b:2": FakeNode(None), "holdfast://a:1": FakeNode(None), "holdfast://b:2": second}
    options = {"servers": "a:1,b:2", "subscribePattern": "orders-.*", "brokerTimeout": "0ms"}
    connect: Any = lambda url, timeout_s: nodes[url]  # noqa: E731
    places = broker_places.BrokerPlaces(parse_options(options), connect)
    settings = ArchiveSettings(servers="a:1,b:2", pattern="orders-.*")

    def archiver(archive: ArchiveWriter) -> Archiver:
        return Archiver(None, archive, places, settings)  # type: ignore[arg-type]  # nothing is read or written

    with ArchiveWriter(tmp_path).opened() as archive:
        known = ArchivedTopic(created_ms=1, partitions={0: Extent(start=0, end=5)})
        topics = {"orders-2025": known, "of-another-pattern": known}
        archive.commit(Commit(version=1, time_ms=1, kind="batch", topics=topics))
        second.is_away = True
        with pytest.raises(HoldfastError, match=r"orders-2025 is not known .* b:2") as unsure:
            archiver(archive).batch()
        assert unsure.value.code == "connection_lost", "the one that is away may have it"
        second.is_away = False
        running = archiver(archive)
        assert running.batch() is None
        second.is_away = True
        assert running.batch() is None, "everybody has said that it is gone"
        assert archive.state.version == 2, "which is written down once"
    with ArchiveWriter(tmp_path).opened() as archive:
        assert archiver(archive).batch() is None, "and known when it is started again"
        assert archive.state.gone == ("orders-2025",) and archive.state.topics == topics


def test_archive_of_a_topic_with_a_processor_starts_again_and_leaves_its_cursors_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cursors stand in what the processor makes, which is less here: the archive's offsets are not in it."""
    (tmp_path / "dropping.py").write_text(
        "def drop(message):\n    return message.value if message.offset < 2 else None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    settings = {"processor": "dropping:drop", "processor_topics": "priced"}
    with LocalCluster(nodes=1, settings=settings) as cluster, cluster.connect_blocking() as broker:
        for topic in ("priced", "plain"):
            broker.create_topic(topic)
            broker.publish_many(topic, [b"x"] * 5)
        wait_until(lambda: broker.seek("priced", "reader", "latest").partitions[0].offset == 2, "it is processed")
        described = {topic: broker.describe(topic) for topic in ("priced", "plain")}
        servers = cluster.url.removeprefix("holdfast://")
        options = parse_options({"servers": servers, "subscribe": "priced,plain"})
        with (
            ArchiveWriter(tmp_path / "archive").opened() as archive,
            broker_places.broker_places(options) as places,
        ):
            topics = {
                name: ArchivedTopic(created_ms=each.created_ms, partitions={0: Extent(start=0, end=5)})
                for name, each in described.items()
            }
            archive.commit(Commit(version=1, time_ms=1, kind="batch", topics=topics))
            for group in ("archive", "reader"):
                settings_of_group = ArchiveSettings(servers=servers, topics=("priced", "plain"), group=group)
                archiver = Archiver(None, archive, places, settings_of_group)  # type: ignore[arg-type]
                archiver.begin(once=True)
                assert archiver.batch() is None
                assert broker.cursor("plain", group).partitions[0].offset == 5
                # A processor may come when the archive runs already: it is asked for wherever a cursor moves.
                archiver._show_progress({("priced", 0): 1, ("plain", 0): 5}, [])
        assert caplog.text.count("priced has a processor") == 2, "once for each group"
        found = {(str(cursor.topic), str(cursor.name)): cursor.partitions[0].offset for cursor in broker.cursors()}
    assert found.pop(("priced", PROCESSOR_CURSOR)) == 5
    assert found == {("plain", "archive"): 5, ("plain", "reader"): 5, ("priced.processed", "reader"): 2}


def test_archive_of_a_topic_that_has_lost_its_beginning_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Begun(Exception):
        pass

    def tell(_: str) -> None:
        raise Begun

    def partitions(**_: object) -> list[PartitionPlace]:
        return [PartitionPlace("t", number, 1, start, 30_000, 10**6) for number, start in ((0, 0), (1, 20_000))]

    places = SimpleNamespace(partitions=partitions)
    with ArchiveWriter(tmp_path).opened() as archive:
        settings = ArchiveSettings(servers="a:1", topics=("t",))
        archiver = Archiver(None, archive, places, settings, tell)  # type: ignore[arg-type]  # nothing is read
        with pytest.raises(Begun):
            archiver.batch()
        assert caplog.messages == ["t/1 begins at offset 20,000: older messages have expired"]
        known = {number: Extent(start=start, end=25_000) for number, start in ((0, 0), (1, 20_000))}
        topics = {"t": ArchivedTopic(created_ms=1, partitions=known)}
        archive.commit(Commit(version=1, time_ms=1, kind="batch", topics=topics))
        with pytest.raises(Begun):
            archiver.batch()
        assert len(caplog.messages) == 1
