"""A driver that archives or compacts is killed, and every offset is there once; `make chaos-archive` kills more."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.campaigns import archive
from testkit.spark import DriverProcess

from holdfast.spark.archive_files import ArchiveWriter
from holdfast.spark.archive_format import ArchivedTopic, Commit, Extent


def test_kill_that_came_too_late_does_not_count(tmp_path: Path) -> None:
    with DriverProcess("archive", "--help", log=tmp_path / "log") as alive:
        assert alive.kill()
    with DriverProcess("archive", "--help", log=tmp_path / "log") as ended:
        ended.process.communicate()
        assert not ended.kill()
    tally = archive.Tally(3)
    tally.hits["archived"] += 5
    assert not tally.is_enough and str(tally) == "5 of 2 while it archived, 0 of 1 while it compacted"
    tally.hits["compacted"] += 1
    assert tally.is_enough


def test_driver_that_left_nothing_to_do_was_killed_too_late(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path).opened() as writer:
        extent = ArchivedTopic(created_ms=1, partitions={0: Extent(start=0, end=5)})
        writer.commit(Commit(version=1, time_ms=1, kind="batch", topics={archive.TOPIC: extent}))

    def is_unfinished(sent: int) -> bool:
        return archive.is_unfinished(tmp_path, sent, is_compaction=False)

    assert is_unfinished(6) and not is_unfinished(5)
    writer.new_place().mkdir()
    assert is_unfinished(5), "there are files of a commit that did not come"


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.timeout(900)
def test_killed_driver_loses_and_doubles_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills in the middle of batches and of compactions, and a driver that does the rest."""
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    outcome = archive.run(20, 8, tmp_path, print)
    assert not outcome.verdict.examples, outcome.verdict.examples
