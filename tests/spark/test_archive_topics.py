"""Topics come and go while an archive is written: what it asks the brokers, and what it remembers of the answers."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from holdfast.client import ConnectionLost, RemoteError
from holdfast.model.errors import HoldfastError
from holdfast.pipelines.archive_settings import ArchiveSettings
from holdfast.pipelines.archiving import Archiver
from holdfast.spark import broker_places
from holdfast.spark.archive_files import ArchiveWriter
from holdfast.spark.archive_format import ArchivedTopic, Commit, Extent
from holdfast.spark.options import parse_options


class Node:
    """A broker without topics, or one that does not answer."""

    is_away = False

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""

    def topics(self) -> list[Any]:
        return []

    def describe(self, topic: str) -> Any:
        raise ConnectionLost("away") if self.is_away else RemoteError("topic_not_found", topic, 404)


def test_archive_of_a_pattern_goes_on_without_a_broker_when_one_of_its_topics_was_deleted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Node()
    nodes = {"holdfast://a:1,b:2": Node(), "holdfast://a:1": Node(), "holdfast://b:2": second}
    monkeypatch.setattr(broker_places, "connect_blocking", lambda url, timeout_s: nodes[url])
    options = {"servers": "a:1,b:2", "subscribePattern": "orders-.*", "brokerTimeout": "0ms"}
    places = broker_places.BrokerPlaces(parse_options(options))
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
