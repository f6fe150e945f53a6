"""What an archive decides: no offset is planned twice or passed over, and compaction ends."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import HoldfastError
from holdfast.pipelines import archive_rules
from holdfast.spark.archive_format import ArchivedFile, ArchivedTopic, Commit, Extent, State, extended
from holdfast.spark.archive_history import behind, lacks
from holdfast.spark.broker_places import PartitionPlace

MADE_MS = 17


def place(number: int, start: int, end: int, created_ms: int = MADE_MS) -> PartitionPlace:
    return PartitionPlace("t", number, created_ms, start, end, size_bytes=10 * (end - start))


def state_of(extents: dict[int, Extent]) -> State:
    return State(topics={"t": ArchivedTopic(created_ms=MADE_MS, partitions=extents)})


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_batch_behind_batch_archives_every_offset_once(seed: int, batch_bytes: int) -> None:
    """Logs grow and expire at random; each batch is planned from what the batches before it have committed."""
    dice = random.Random(seed)
    logs = {number: [dice.randrange(5), 0] for number in range(3)}
    for log in logs.values():
        log[1] = log[0] + dice.randrange(20)
    begun = {number: log[0] for number, log in logs.items()}
    state = State()
    archived: dict[int, list[int]] = {number: [] for number in logs}
    expired: dict[int, set[int]] = {number: set() for number in logs}
    for _ in range(20):
        there = [place(number, *log) for number, log in logs.items()]
        ranges = archive_rules.plan(state, there, None, allow_gaps=True)
        chosen = archive_rules.next_batch(ranges, there, batch_bytes)
        topics = ArchivedTopic(created_ms=MADE_MS, partitions={})
        for (_, number), (start, end) in chosen.items():
            archived[number] += range(start, end)
            known = state.topics["t"].partitions.get(number) if state.topics else None
            topics.partitions[number] = extended(known, start, end)
        commit = Commit(version=state.version + 1, time_ms=0, kind="batch", topics={"t": topics})
        state = state.after(commit)
        for number, log in logs.items():
            old = log[0]
            log[1] += dice.randrange(10)
            log[0] = dice.choice((log[0], log[0], dice.randint(log[0], log[1])))
            expired[number] |= set(range(old, log[0])) - set(archived[number])
            if number not in (state.topics["t"].partitions if state.topics else {}):
                begun[number] = log[0]
    for number, offsets in archived.items():
        extent = state.topics["t"].partitions.get(number)
        if extent is None:
            assert not offsets
            continue
        lacking = [offset for first, end in extent.gaps for offset in range(first, end)]
        assert sorted(offsets + lacking) == list(range(begun[number], extent.end)), "each offset once, or in a gap"
        assert set(lacking) <= expired[number] and extent.rows == len(offsets)


@given(st.sets(st.integers(0, 40)), st.integers(0, 20), st.integers(20, 40))
def test_missing_are_the_offsets_that_are_in_no_run(offsets: set[int], start: int, end: int) -> None:
    found = sorted(offset for offset in offsets if start <= offset < end)
    runs: list[tuple[int, int]] = []
    for offset in found:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    missing = archive_rules.missing(reversed(runs), start, end)
    assert [offset for first, stop in missing for offset in range(first, stop)] == sorted(
        {*range(start, end)} - {*found}
    )
    assert all(before[1] < after[0] for before, after in pairwise(missing)), "stretches are as long as they can be"


def test_plan_stops_at_targets_and_refuses_what_cannot_be_right() -> None:
    state = state_of({0: Extent(start=0, end=10)})
    there = [place(0, 4, 30), place(1, 7, 9)]
    assert archive_rules.plan(state, there, None, allow_gaps=False) == {("t", 0): (10, 30), ("t", 1): (7, 9)}
    targets = {("t", 0): 20}
    assert archive_rules.plan(state, there, targets, allow_gaps=False) == {("t", 0): (10, 20), ("t", 1): (7, 7)}
    # A node that is behind: nothing is archived again, and nothing is taken back.
    assert archive_rules.plan(state, [place(0, 0, 8)], None, allow_gaps=False) == {("t", 0): (10, 10)}
    for wrong, code in ((place(0, 11, 30), "data_lost"), (place(0, 0, 30, created_ms=18), "archive_mismatch")):
        with pytest.raises(HoldfastError) as refused:
            archive_rules.plan(state, [wrong], None, allow_gaps=False)
        assert refused.value.code == code


@given(st.lists(st.integers(1, 1 << 21), max_size=60), st.integers(2, 9))
def test_compaction_ends_with_few_files_and_touches_no_large_one(sizes: list[int], files_min: int) -> None:
    file_bytes = 1 << 20
    files = {
        str(number): ArchivedFile(path=str(number), topic="t", date="d", hour=number % 2, rows=1, size_bytes=size)
        for number, size in enumerate(sizes)
    }
    rows = len(files)
    large = {path for path, file in files.items() if file.size_bytes >= file_bytes}
    written, steps = 0, 0
    while chosen := archive_rules.to_compact(files.values(), files_min=files_min, file_bytes=file_bytes):
        for some in chosen:
            assert len(some) > 1 and len({(file.topic, file.date, file.hour) for file in some}) == 1
            assert sum(file.size_bytes for file in some) <= 2 * file_bytes
            assert not {file.path for file in some} & large
            for file in some:
                del files[file.path]
            together = ArchivedFile(
                path=f"n{(steps := steps + 1)}",
                topic="t",
                date="d",
                hour=some[0].hour,
                rows=sum(file.rows for file in some),
                size_bytes=sum(file.size_bytes for file in some),
            )
            written += together.rows
            files[together.path] = together
    assert sum(file.rows for file in files.values()) == rows, "rows are only moved"
    tiers = 2 + len(range(0, 20 - 16, (files_min).bit_length() - 1))
    small = [file for file in files.values() if file.size_bytes < file_bytes]
    assert len(small) <= 2 * tiers * (files_min - 1)


def test_history_goes_on_in_the_log_where_the_archive_ends() -> None:
    archived = ArchivedTopic(created_ms=MADE_MS, partitions={0: Extent(start=0, end=10), 1: Extent(start=0, end=5)})
    there = [place(0, 4, 30), place(1, 7, 9), place(2, 3, 6)]
    ends = {("t", 0): 30, ("t", 1): 9, ("t", 2): 6}
    assert behind("t", archived, there, ends) == {("t", 0): (10, 30), ("t", 1): (7, 9), ("t", 2): (3, 6)}
    assert behind("t", None, there, ends) == {("t", 0): (4, 30), ("t", 1): (7, 9), ("t", 2): (3, 6)}
    with pytest.raises(HoldfastError) as refused:
        behind("t", archived, [place(0, 0, 3, created_ms=18)], {})
    assert refused.value.code == "archive_mismatch"


def test_history_looks_again_where_the_log_begins_behind_what_the_archive_had() -> None:
    """What was archived, and expired, between the two looks would be missing without a word."""
    archived = ArchivedTopic(created_ms=MADE_MS, partitions={0: Extent(start=0, end=10)})
    assert not lacks(archived, {("t", 0): (10, 30), ("t", 1): (0, 5)})
    assert lacks(archived, {("t", 0): (11, 30)})
    assert lacks(archived, {("t", 0): (10, 30), ("t", 1): (100, 120)})
    assert lacks(None, {("t", 0): (4, 30)}) and not lacks(None, {("t", 0): (0, 30)})
