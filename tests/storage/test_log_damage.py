"""A flipped bit in acknowledged data: told, never served, and nothing around it is lost with it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.logs import OpenLog, flip, frame_positions, hole_ranges
from testkit.sizes import dice, examples

from holdfast.model.errors import DamagedData
from holdfast.model.ids import Offset, TimestampMs
from holdfast.storage import index, segment_reading
from holdfast.storage.frames import FRAME_BYTES
from holdfast.storage.log import PartitionLog

BATCHES = 12
# Where in a frame a bit turns over, and what that breaks.
SPOTS = {
    "magic": 0,
    "length": 7,
    "entry number": 15,
    "synced mark": 31,
    "frame crc": 33,
    "base offset": FRAME_BYTES + 7,
    "batch length": FRAME_BYTES + 11,
    "batch crc": FRAME_BYTES + 18,
    "record count": FRAME_BYTES + 60,
    "payload": FRAME_BYTES + 70,
}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenLog]:
    log = OpenLog(tmp_path / "log")
    yield log
    log.close()


def each_spot(tmp_path: Path) -> Iterator[tuple[int, OpenLog]]:
    """A new log for each place in a frame; which one it is stands in the output of a test that fails."""
    for name, spot in SPOTS.items():
        print(f"a bit of the {name} turns over")
        opened = OpenLog(tmp_path / name)
        yield spot, opened
        opened.close()


def filled(opened: OpenLog, *, roll: bool = False) -> dict[int, bytes]:
    """Twelve batches of one to three messages, each of them acknowledged; sealed if `roll`."""
    expected: dict[int, bytes] = {}
    for number in range(BATCHES):
        values = [b"batch %d message %d " % (number, i) + bytes(20 * number) for i in range(1 + number % 3)]
        offset = opened.append_synced(*values, timestamp_ms=1_000 + number)
        expected |= {offset + i: value for i, value in enumerate(values)}
    if roll:
        opened.log.segment_bytes = 1
        expected[opened.append_synced(b"in the next segment", timestamp_ms=2_000)] = b"in the next segment"
        opened.log.segment_bytes = opened.segment_bytes
    return expected


def ranges_of(expected: dict[int, bytes]) -> list[tuple[int, int]]:
    """The offsets of each of the twelve batches."""
    found, offset = [], 0
    for number in range(BATCHES):
        found.append((offset, offset + 1 + number % 3))
        offset = found[-1][1]
    return found


def check_only_these_are_missing(opened: OpenLog, expected: dict[int, bytes], missing: list[tuple[int, int]]) -> None:
    for bytes_max in (1, 500, 1 << 40):
        values, damage = opened.served(bytes_max)
        assert damage == missing
        gone = {offset for first, end in missing for offset in range(first, end)}
        assert values == {offset: value for offset, value in expected.items() if offset not in gone}
    for first, end in missing:
        for offset in range(first, end):
            with pytest.raises(DamagedData) as told:
                opened.log.read(Offset(offset), 100, opened.log.written_end)
            assert told.value.next_offset == end
            assert opened.log.next_readable(Offset(offset)) == end


@pytest.mark.parametrize(
    ("kind", "found_by", "place"), [("active", "opening", 5), ("active", "reading", 0), ("sealed", "opening", 10)]
)
def test_flipped_bit_costs_one_batch_and_is_told(tmp_path: Path, kind: str, found_by: str, place: int) -> None:
    for spot, opened in each_spot(tmp_path):
        expected = filled(opened, roll=kind == "sealed")
        file = opened.segment_files()[0]
        flip(file, frame_positions(file)[place][0] + spot)
        if found_by == "opening":
            recovery = opened.reopen()
            assert recovery.torn_bytes == 0 and recovery.deleted_segments == []
            if kind == "active":
                assert hole_ranges(recovery.holes) == [ranges_of(expected)[place]]
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[place]])


def test_flipped_bit_in_the_last_batch_of_a_sealed_segment_is_told(tmp_path: Path) -> None:
    for spot, opened in each_spot(tmp_path):
        expected = filled(opened, roll=True)
        file = opened.segment_files()[0]
        flip(file, frame_positions(file)[-1][0] + spot)
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[-1]])
        opened.reopen()
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[-1]])


def test_flipped_bit_is_told_where_the_index_is_gone_too(tmp_path: Path) -> None:
    for spot, opened in each_spot(tmp_path):
        expected = filled(opened, roll=True)
        expected[opened.append_synced(b"more")] = b"more"
        file = opened.segment_files()[0]
        flip(file, frame_positions(file)[-1][0] + spot)
        opened.index_files()[0].unlink()
        recovery = opened.reopen()
        assert hole_ranges(recovery.holes) == [ranges_of(expected)[-1]]
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[-1]])
        opened.reopen()
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[-1]])


@pytest.mark.parametrize("cut_bytes", [1, 30, 200, 10**6])
def test_sealed_segment_that_lost_its_end_takes_nothing_behind_it_along(opened: OpenLog, cut_bytes: int) -> None:
    """The next segment was acknowledged, so what is missing before it is damage and no torn tail."""
    expected = filled(opened, roll=True)
    file = opened.segment_files()[0]
    data = file.read_bytes()
    ends = [end for _, end in frame_positions(file)]
    kept = max(0, len(data) - cut_bytes)
    file.write_bytes(data[:kept])
    first = ranges_of(expected)[sum(end <= kept for end in ends)][0]
    recovery = opened.reopen()
    assert recovery.deleted_segments == []
    check_only_these_are_missing(opened, expected, [(first, ranges_of(expected)[-1][1])])


@pytest.mark.parametrize("place", [0, BATCHES - 1])
def test_flipped_bit_after_a_clean_stop_is_damage_and_no_torn_tail(tmp_path: Path, place: int) -> None:
    """Also in what was synced last, which no later batch can vouch for."""
    values = [b"batch %d " % number for number in range(BATCHES)]
    for spot, opened in each_spot(tmp_path):
        for value in values:
            opened.append(value)
        opened.sync()
        opened.close()
        file = opened.segment_files()[0]
        flip(file, frame_positions(file)[place][0] + spot)
        recovery = opened.reopen()
        assert recovery.torn_bytes == 0, "acknowledged messages were cut off"
        check_only_these_are_missing(opened, dict(enumerate(values)), [(place, place + 1)])
        assert opened.append_synced(b"later") == BATCHES, "an offset was given twice"


def test_log_goes_on_behind_damage_at_its_end(opened: OpenLog) -> None:
    expected = filled(opened)
    file = opened.segment_files()[0]
    flip(file, frame_positions(file)[BATCHES - 2][0])
    missing = [ranges_of(expected)[BATCHES - 2]]
    for number in range(3):
        opened.reopen()
        expected[opened.append_synced(b"later %d" % number)] = b"later %d" % number
        check_only_these_are_missing(opened, expected, missing)


def test_two_damaged_batches_are_two_losses(opened: OpenLog) -> None:
    expected = filled(opened)
    file = opened.segment_files()[0]
    for place in (2, 7):
        flip(file, frame_positions(file)[place][0])
    opened.reopen()
    check_only_these_are_missing(opened, expected, [ranges_of(expected)[place] for place in (2, 7)])


def test_neighbouring_damaged_batches_are_skipped_together(opened: OpenLog) -> None:
    expected = filled(opened)
    file = opened.segment_files()[0]
    positions = frame_positions(file)
    for place in (4, 5, 6):
        flip(file, positions[place][0])
    opened.reopen()
    check_only_these_are_missing(opened, expected, [(ranges_of(expected)[4][0], ranges_of(expected)[6][1])])


@pytest.mark.parametrize("place", [0, 5, BATCHES - 1])
@pytest.mark.parametrize("spot", ["magic", "payload"])
def test_search_by_time_goes_around_damage(opened: OpenLog, spot: str, place: int) -> None:
    expected = filled(opened, roll=True)
    file = opened.segment_files()[0]
    flip(file, frame_positions(file)[place][0] + SPOTS[spot])
    for _ in range(2):
        ranges = [*ranges_of(expected), (max(expected), max(expected) + 1)]
        for number in range(BATCHES):
            found = opened.log.first_at_or_after(TimestampMs(1_000 + number))
            assert found in (ranges[number][0], ranges[number + 1][0])
            assert found == ranges[number][0] or number == place
        check_only_these_are_missing(opened, expected, [ranges[place]])
        opened.reopen()


def test_damage_does_not_come_and_go_with_restarts(opened: OpenLog) -> None:
    expected = filled(opened, roll=True)
    file = opened.segment_files()[0]
    flip(file, frame_positions(file)[3][0])
    for _ in range(3):
        check_only_these_are_missing(opened, expected, [ranges_of(expected)[3]])
        opened.reopen()
        for path in opened.index_files():
            path.unlink()


def test_missing_segment_in_the_middle_is_told(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=1)
    for number in range(5):
        opened.append_synced(b"%d" % number)
    opened.segment_files()[2].unlink()
    recovery = opened.reopen()
    assert hole_ranges(recovery.holes) == [(2, 3)]
    assert opened.served() == ({0: b"0", 1: b"1", 3: b"3", 4: b"4"}, [(2, 3)])
    opened.close()


@examples(60, 2_000)
@given(
    seed=st.integers(0, 2**32),
    index_interval=st.sampled_from([1, 300, 16_384]),
    read_ahead=st.sampled_from([97, 65_536]),
)
def test_no_flipped_bits_are_ever_served_as_a_message(
    tmp_path_factory: pytest.TempPathFactory, seed: int, index_interval: int, read_ahead: int
) -> None:
    """Any bits of any file, found at start or while reading: others' messages stay, no reader is sent in circles."""
    rolled = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "INDEX_INTERVAL_BYTES", index_interval)
        patched.setattr(segment_reading, "_READ_AHEAD_BYTES", read_ahead)
        opened = OpenLog(tmp_path_factory.mktemp("log"), segment_bytes=rolled.choice([400, 1_500, 1 << 30]))
        expected: dict[int, bytes] = {}
        batch_of: dict[int, tuple[int, int]] = {}
        for number in range(rolled.randint(3, 15)):
            values = [b"%d/%d " % (number, i) + rolled.randbytes(rolled.choice([0, 5, 300])) for i in range(3)]
            first = opened.append_synced(*values)
            expected |= {first + i: value for i, value in enumerate(values)}
            batch_of |= {first + i: (first, first + 3) for i in range(3)}
        last = opened.append_synced(b"the last one vouches for the others, and is spared")
        frames = [(file, *place) for file in opened.segment_files() for place in frame_positions(file)][:-1]
        hurt = rolled.choices(frames, k=rolled.choice([1, 1, 2, 5]))
        for file, position, end in hurt:
            flip(file, rolled.randrange(position, end), 1 << rolled.randrange(8))
        if rolled.random() < 0.5:
            opened.reopen()
        served, damage = opened.served(rolled.choice([1, 700, 1 << 40]))
        assert served.pop(last).startswith(b"the last one")
        assert all(expected[offset] == value for offset, value in served.items()), "damaged bytes were served"
        lost = {offset for offset in expected if offset not in served}
        assert len({batch_of[offset] for offset in lost}) <= len(set(hurt)), "undamaged messages were lost as well"
        assert lost == {offset for first, end in damage for offset in range(first, end)}
        opened.close()


def test_reading_from_many_places_never_sends_a_reader_back(tmp_path: Path) -> None:
    """A reader at any offset of a damaged log is told to go on at a later one, or gets its message."""
    rolled = dice("reading from many places")
    opened = OpenLog(tmp_path / "log")
    for number in range(60):
        opened.append_synced(b"%d with a payload that every spot lies within" % number)
    file = opened.segment_files()[0]
    positions = frame_positions(file)
    for place in rolled.sample(range(59), 10):
        flip(file, positions[place][0] + rolled.choice(list(SPOTS.values())))
    for _ in range(2):
        for offset in range(60):
            try:
                batches = opened.read_batches(offset, rolled.choice([1, 1_000]))
            except DamagedData as told:
                assert told.next_offset > offset
            else:
                assert batches
        log, recovery = PartitionLog.open(opened.directory)
        assert len(recovery.holes) <= 10
        log.close()
        opened.reopen()
    opened.close()
