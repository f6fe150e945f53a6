"""A sync that fails while one of a pair takes over is final: what its disk has is not known any more."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.inprocess import Nodes
from testkit.wait import until

from holdfast.model.errors import StorageFailed
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.topics import TopicConfig


async def test_backup_whose_disk_fails_while_it_takes_over_ends_and_does_not_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, 2, is_pair=True)
    try:
        await nodes.start()
        backup = nodes.backends["n2"]
        control = backup.control.replica.raft
        await until(lambda: len(control.members.voters) == 2 and control.hears_leader)
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await until(lambda: "t" in backup.topics_here.known)
        tries = 0

        def fails(fd: int) -> None:
            nonlocal tries
            tries += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        journal = backup.groups._hard_states.journal
        real = journal.sync_now
        monkeypatch.setattr(journal, "sync_now", lambda: _with_failing_disk(monkeypatch, fails, real))
        await nodes.stop("n1")
        await until(lambda: "n2" in nodes.failed)
        tried = tries
        # It would look again several times in this while.
        failed_s = backup.groups._loop.time()
        await until(lambda: backup.groups._loop.time() > failed_s + 0.8)
        assert tried == tries == 1
        with pytest.raises(StorageFailed):
            backup.append(PartitionId(TopicName("t"), 0), values_batch(b"x"))
    finally:
        await nodes.stop()


def _with_failing_disk(monkeypatch: pytest.MonkeyPatch, fails: object, sync: object) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        sync()  # type: ignore[operator]
