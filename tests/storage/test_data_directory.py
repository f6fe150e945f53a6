"""A data directory belongs to one broker and one version, and says so instead of losing what is in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.model.errors import DataDirectoryError
from holdfast.storage.directory import DataDirectory, read_identity


def opened(path: Path, node: str = "n1") -> DataDirectory:
    return DataDirectory.open(path, node=node, now_ms=1_000)


def test_second_broker_on_the_same_messages_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "data")
    with pytest.raises(DataDirectoryError, match=f"process {os.getpid()}"):
        opened(tmp_path / "data")
    first.close()
    opened(tmp_path / "data").close()


def test_directory_keeps_its_name(tmp_path: Path) -> None:
    opened(tmp_path / "data", "first").close()
    again = opened(tmp_path / "data", "second")
    assert again.identity.node == "first"
    again.close()


def test_directory_of_another_version_is_left_alone(tmp_path: Path) -> None:
    opened(tmp_path / "data").close()
    file = tmp_path / "data" / "holdfast.json"
    file.write_text(json.dumps({"format": 99, "node": "n1", "created_ms": 1}))
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    with pytest.raises(DataDirectoryError, match="format 99"):
        opened(tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "x"}', b"\xff\xfe"])
def test_damaged_identity_is_told_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path / "data").close()
    file = tmp_path / "data" / "holdfast.json"
    file.write_bytes(content)
    with pytest.raises(DataDirectoryError):
        opened(tmp_path / "data")
    assert file.read_bytes() == content
    file.unlink()
    opened(tmp_path / "data").close()


def test_crash_before_the_identity_was_renamed_leaves_a_new_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "holdfast.json.tmp").write_bytes(b'{"format"')
    assert read_identity(data) is None
    directory = opened(data)
    assert directory.identity.node == "n1"
    directory.close()


@pytest.mark.parametrize("what", ["file", "below a file"])
def test_place_that_is_no_directory_is_refused_in_words(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" if what == "file" else tmp_path / "file" / "data"
    with pytest.raises(DataDirectoryError, match="--data"):
        opened(path)


def test_looking_only_needs_no_lock(tmp_path: Path) -> None:
    first = opened(tmp_path / "data")
    assert DataDirectory.open_unlocked(tmp_path / "data").identity == first.identity
    first.close()
    with pytest.raises(DataDirectoryError, match="not a data directory"):
        DataDirectory.open_unlocked(tmp_path / "nothing")
