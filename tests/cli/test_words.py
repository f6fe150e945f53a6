"""Small things that people write and read: amounts, inputs, and how quickly help is there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import typer
from testkit.commands import environment, holdfast_process, wait_for_input_threads

from holdfast.cli import output, sources
from holdfast.cli.pacing import paced
from holdfast.cli.quantities import bytes_text, duration_s, duration_text, plural, rate_per_s, size_bytes
from holdfast.model.errors import TooLarge


def test_table_shows_what_others_wrote_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.table("callback", "last error")
    table.add_row("[fd00::a:b:1]:9000", "said '[/x] [bold] hello' :b:")
    table.add_row(output.coloured("away", "red"), "-")
    output.console().print(table)
    shown = capsys.readouterr().out
    assert "[fd00::a:b:1]:9000" in shown and "said '[/x] [bold] hello' :b:" in shown and "away" in shown


def test_amounts_as_people_write_them() -> None:
    durations = {"500ms": 0.5, "40s": 40, "1.5h": 5400, "10m": 600, "7d": 604_800, "2w": 1_209_600}
    assert {text: duration_s(text) for text in durations} == durations
    sizes = {"1500": 1500, "1B": 1, "64KiB": 65_536, "10GB": 10_000_000_000, "1.5 MB": 1_500_000, "1TiB": 2**40}
    assert {text: size_bytes(text) for text in sizes} == sizes
    rates = {"10": 10, "0.5": 0.5, "100/s": 100}
    assert {text: rate_per_s(text) for text in rates} == rates


@pytest.mark.parametrize(
    ("read", "words", "texts"),
    [
        (duration_s, "duration|between", ("", "s", "10", "-1s", "1 day", "0s", "1e3s", "9999999999d", "١s")),
        (size_bytes, "size|less than", ("", "GB", "-1", "10G", "0", "0.1B", "1e9")),
        (rate_per_s, "rate", ("", "0", "-1", "inf", "nan", "1e9", "10/m", "2000000")),
    ],
)
def test_what_is_no_amount(read: Callable[[str], float], words: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(typer.BadParameter, match=words):
            pytest.fail(f"{text!r} is taken for {read(text)}")


def test_amounts_as_people_read_them() -> None:
    assert [bytes_text(size) for size in (0, 999, 1500, 12_300_000, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "12.3 MB",
        "5.0 TB",
    ]
    assert [duration_text(s) for s in (0.35, 12, 3900, 604_800)] == ["350ms", "12s", "1h 5m", "7d"]
    assert [plural(1, "batch"), plural(2, "batch"), plural(1200, "message")] == [
        "1 batch",
        "2 batches",
        "1,200 messages",
    ]


# --- inputs -------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    wait_for_input_threads()
    os.close(read_fd)


def _written(fd: int, data: bytes) -> threading.Thread:
    def write() -> None:
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"x" * 300_000 + b"\n" + b"y" * 300_000, [b"x" * 300_000, b"y" * 300_000]),
    ],
)
def test_lines_of_an_input(pipe: tuple[int, int], given: bytes, lines: list[bytes]) -> None:
    writing = _written(pipe[1], given)
    assert [line for some in sources.lines(pipe[0]) for line in some] == lines
    writing.join()


def test_line_is_handed_on_before_the_next_one_comes(pipe: tuple[int, int]) -> None:
    found = sources.lines(pipe[0])
    os.write(pipe[1], b"first\nsec")
    assert next(found) == [b"first"]
    os.write(pipe[1], b"ond\n")
    assert next(found) == [b"second"]
    os.close(pipe[1])
    assert list(found) == []


def test_input_that_falls_silent_ends_at_its_time(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"first\nbegun")
    times = iter((0.0, 60.0))
    found = sources.lines(pipe[0], ends=60.0, monotonic_s=lambda: next(times))
    assert [line for some in found for line in some] == [b"first"]
    os.close(pipe[1])


def test_endless_line_is_refused_before_memory_is_full(pipe: tuple[int, int]) -> None:
    writing = _written(pipe[1], b"x" * (sources.LINE_BYTES_MAX + 100_000))
    with pytest.raises(TooLarge, match="--whole"):
        list(sources.lines(pipe[0]))
    writing.join()


class FakeTime:
    """A clock that only sleeping, publishing and waiting for input move."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def paced(self, source: Iterator[list[bytes]], rate: float, for_s: float | None = None) -> Iterator[list[bytes]]:
        return paced(source, rate, for_s, 1000, lambda: self.now, self.sleep)


def test_steady_rate() -> None:
    time_of = FakeTime()
    sent = [(round(time_of.now, 6), due) for due in time_of.paced(sources.sequence(), 10, for_s=0.5)]
    assert sent == [(0.0, [b"1"]), (0.1, [b"2"]), (0.2, [b"3"]), (0.3, [b"4"]), (0.4, [b"5"])]


@pytest.mark.parametrize(("rate", "for_s"), [(10, 40), (3, 0.7), (0.1, 25), (1000, 0.3), (7, 0.01)])
def test_time_and_rate_make_the_number_of_messages(rate: float, for_s: float) -> None:
    time_of = FakeTime()
    numbers = [value for due in time_of.paced(sources.sequence(), rate, for_s) for value in due]
    assert len(numbers) == math.ceil(round(rate * for_s, 6))
    assert numbers == [b"%d" % number for number in range(1, len(numbers) + 1)]


def test_what_a_broker_missed_is_caught_up_on() -> None:
    time_of = FakeTime()
    lists = []
    for due in time_of.paced(sources.sequence(), 10, for_s=3):
        lists.append(len(due))
        if len(lists) == 5:
            time_of.now += 1.05  # the broker was away
    assert lists[:7] == [1, 1, 1, 1, 1, 10, 1] and sum(lists) == 30


def test_silence_of_an_input_is_not_made_up_for() -> None:
    time_of = FakeTime()

    def source() -> Iterator[list[bytes]]:
        yield [b"1"]
        time_of.now += 60
        yield [b"2", b"3", b"4"]

    sent = [(round(time_of.now, 6), due) for due in time_of.paced(source(), 10)]
    assert sent == [(0.0, [b"1"]), (60.0, [b"2"]), (60.1, [b"3"]), (60.2, [b"4"])]


def test_count_cuts_a_source() -> None:
    source = iter([[b"1", b"2"], [b"3", b"4"], [b"5"]])
    assert [value for some in sources.limited(source, 3) for value in some] == [b"1", b"2", b"3"]


# --- starting -----------------------------------------------------------------------------------------------


def test_help_loads_nothing_that_it_does_not_need() -> None:
    script = "import holdfast.cli.app, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, env=environment()
    ).stdout.split()
    heavy = {
        "asyncio",
        "rich",
        "starlette",
        "uvicorn",
        "uvloop",
        "structlog",
        "sqlite3",
        "h11",
        "holdfast.client.client",
    }
    assert heavy & set(loaded) == set()


def test_version_and_help() -> None:
    assert holdfast_process("--version").text.startswith("holdfast ")
    shown = holdfast_process("-h")
    assert shown.code == 0
    for command in ("serve", "publish", "subscribe", "topics", "cursors", "bench", "demo", "check", "doctor", "config"):
        assert f" {command} " in shown.text
    wrong = holdfast_process("pubish")
    assert wrong.code == 2 and "Did you mean 'publish'" in wrong.err
