"""Files for executors are sent as a small zip, and one that a power loss has torn is never taken for whole."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from holdfast.spark import zips


def test_zip_is_small_and_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "cache_directory", lambda: tmp_path)
    synced: list[tuple[bool, str | None]] = []

    def note(_: int) -> None:
        [draft] = tmp_path.iterdir()
        with zipfile.ZipFile(draft) as whole:
            synced.append((draft.suffix == ".zip", whole.testzip()))

    monkeypatch.setattr(os, "fsync", note)
    files = {"a/b.py": b"x = 1\n" * 1000, "a/c.py": b""}
    made = zips.zip_of("mine", files)
    assert synced == [(False, None)], "whole, and under another name"
    assert made.stat().st_size < 1000
    with zipfile.ZipFile(made) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files
    assert zips.zip_of("mine", files) == made and len(synced) == 1
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
