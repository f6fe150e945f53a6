"""Messages that wait are acknowledged: whoever looks at a data directory, or serves over it, is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from testkit.batches import values_batch
from typer.testing import CliRunner

from holdfast.backends.spill import events, files
from holdfast.backends.spill.files import SpillDirectory
from holdfast.cli.app import app
from holdfast.model.ids import PartitionId, TopicName
from holdfast.node.config import Config
from holdfast.node.node import now_ms
from holdfast.node.stores import ClusterStore


def left_by_a_broker(path: Path, *values: bytes) -> Path:
    """A file with a line for each value; it returns its path."""
    directory = SpillDirectory.open(path)
    file = files.completed(directory.new_file(files.FAILOVER)).path
    partition = PartitionId(TopicName("orders"), 0)
    file.write_bytes(events.lines_of(partition, values_batch(*values), at_ms=1_000)[0])
    directory.close()
    return file


def doctor(*arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["doctor", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


def found(report: Any) -> dict[str, str]:
    return {each["kind"]: each["detail"] for each in report["findings"]}


def test_doctor_tells_of_messages_that_wait_and_of_those_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data directory of a broker over a database has nothing but its spill."""
    monkeypatch.setenv("HOLDFAST_SPILL_FREE_BYTES_MIN", "0")
    file = left_by_a_broker(tmp_path / "spill", b"1", b"2", b"3")
    code, report = doctor(str(tmp_path))
    assert (code, report["clean"], report["spilled_messages"]) == (0, True, 3)
    assert found(report) == {"spill_waiting": "3 messages (orders: 3)"}
    file.write_bytes(file.read_bytes().replace(b'"payload":2', b'"payload":7'))
    directory = SpillDirectory.open(tmp_path / "spill")
    directory.note_failed(files.listed(directory.path)[0], [events.BadLine(7, b"x", "refused")])
    directory.close()
    code, report = doctor(str(tmp_path))
    assert (code, report["spilled_messages"]) == (1, 2)
    assert found(report).keys() == {"spill_waiting", "spill_damaged", "spill_failed"}
    spill = tmp_path / "spill"
    typed = (f"`holdfast spill replay {spill}`", f"`holdfast spill verify {spill}`", f"`holdfast spill export {spill} ")
    assert all(any(command in each["action"] for command in typed) for each in report["findings"])
    monkeypatch.setenv("HOLDFAST_SPILL_FREE_BYTES_MIN", str(1 << 60))
    assert "below" in found(doctor(str(tmp_path))[1])["spill_room_scarce"]


def test_doctor_tells_of_messages_that_no_broker_stores_and_of_a_progress_file_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SPILL_FREE_BYTES_MIN", "0")
    SpillDirectory.open(tmp_path / "spill").close()
    left_by_a_broker(tmp_path / "spill" / "recovering", b"1", b"2")
    (tmp_path / "spill" / "failover_x.progress").write_bytes(b'{"done":')
    (tmp_path / "spill" / "failover_y.progress").write_bytes(b'{"done":3}')
    code, report = doctor(str(tmp_path))
    assert code == 1
    assert found(report).keys() == {"spill_recovering", "spill_progress_damaged"}
    assert found(report)["spill_recovering"] == "files: 1"


def test_doctor_tells_of_a_spill_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, report = doctor(str(tmp_path), "--spill-dir", str(tmp_path / "file"))
    assert code == 1 and found(report) == {"spill_not_writable": "it is no directory"}
    assert CliRunner().invoke(app, ["doctor", str(tmp_path)]).exit_code == 2, "nothing is here"


@pytest.mark.parametrize("spill", [False, True])
async def test_broker_tells_of_a_recovery_that_was_not_finished(tmp_path: Path, *, spill: bool) -> None:
    """What it takes from now on overtakes messages that were acknowledged before."""
    left_by_a_broker(tmp_path / "spill" / "recovering", b"1", b"2")
    config = Config(data=str(tmp_path), spill=spill)
    with structlog.testing.capture_logs() as logs:
        store = ClusterStore(config, now_ms=now_ms, files_max=1000, on_fatal=lambda _: None, on_replaced=lambda: False)
        await store.start()
        await store.stop()
    [told] = [line for line in logs if line["event"] == "spill_recovering"]
    assert told["files"] == 1 and told["log_level"] == "warning" and "pipeline recover" in told["hint"]


async def test_broker_that_goes_without_a_spill_tells_of_what_one_has_left(tmp_path: Path) -> None:
    left_by_a_broker(tmp_path / "spill", b"1", b"2")
    config = Config(data=str(tmp_path), spill=False)
    with structlog.testing.capture_logs() as logs:
        store = ClusterStore(config, now_ms=now_ms, files_max=1000, on_fatal=lambda _: None, on_replaced=lambda: False)
        await store.start()
        await store.stop()
    [told] = [line for line in logs if line["event"] == "spill_ignored"]
    assert told["messages"] == 2 and told["log_level"] == "warning" and "holdfast spill replay" in told["hint"]
    assert len(files.listed(tmp_path / "spill")) == 1
