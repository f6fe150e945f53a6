"""The audit of many records, timed: `python -m benchmarks.pipeline_audit`, or `make bench-audit`.

Writes record files with planted flaws, runs `holdfast pipeline audit` on them as a person would, and prints how long
that took, how much memory all of its processes had together at most, and whether the verdict is the planted one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

PRODUCERS: Final = 4
PARTITIONS: Final = 4
# Every so many messages of a producer have this flaw; numbers without a common factor, so that flaws rarely meet.
LOST_EVERY: Final = 100_003
DOUBLED_EVERY: Final = 70_001
SWAPPED_EVERY: Final = 50_021
PHANTOM_EVERY: Final = 90_001
RATE_PER_S: Final = 50_000
_CHUNK: Final = 10_000
# Looking at what a large process holds takes its time.
LOOK_S: Final = 1.0


def write_records(directory: Path, rows: int) -> dict[str, int]:
    """`sent.ndjson` and `received.ndjson` with about `rows` lines together; returns the verdict they deserve."""
    each = rows // 2 // PRODUCERS
    planted = dict.fromkeys(("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom"), 0)
    with open(directory / "sent.ndjson", "w") as sent, open(directory / "received.ndjson", "w") as received:
        for first in range(0, each, _CHUNK):
            numbers = range(first, min(first + _CHUNK, each))
            for producer in range(PRODUCERS):
                sent.writelines(_sent(producer, numbers))
                planted["sent"] += len(numbers)
                received.writelines(_received(producer, numbers, planted))
    planted["acknowledged"] = planted["sent"]
    return planted


def _sent(producer: int, numbers: range) -> Iterator[str]:
    for number in numbers:
        at_ms = 1_700_000_000_000 + number * PRODUCERS * 1000 // RATE_PER_S
        yield (
            f'{{"topic":"orders","id":"p{producer}/{number}","sequence":{number},"time_ms":{at_ms},'
            f'"acknowledged":true,"partition":{producer % PARTITIONS}}}\n'
        )


def _received(producer: int, numbers: range, planted: dict[str, int]) -> Iterator[str]:
    come = list(numbers)
    for index, (number, following) in enumerate(pairwise(numbers)):
        if number % SWAPPED_EVERY == 7 and not {number % LOST_EVERY, following % LOST_EVERY} & {11}:
            come[index], come[index + 1] = following, number
            planted["out_of_order"] += 1
    for number in come:
        if number % LOST_EVERY == 11:
            planted["lost"] += 1
            continue
        yield _received_line(producer, f"p{producer}/{number}", number)
        planted["received"] += 1
        if number % DOUBLED_EVERY == 13:
            yield _received_line(producer, f"p{producer}/{number}", number)
            planted["duplicated"] += 1
            planted["received"] += 1
        if number % PHANTOM_EVERY == 17:
            yield _received_line(producer, f"nobody/{producer}-{number}", number)
            planted["phantom"] += 1
            planted["received"] += 1


def _received_line(producer: int, name: str, number: int) -> str:
    at_ms = 1_700_000_000_000 + number * PRODUCERS * 1000 // RATE_PER_S + 1 + hash((producer, number)) % 20
    return (
        f'{{"topic":"orders","id":"{name}","sequence":{number},"time_ms":{at_ms},"broker":"127.0.0.1:8090",'
        f'"receiver":"reader","partition":{producer % PARTITIONS}}}\n'
    )


class Watch:
    """A process and its descendants: what all hold together at most, shared pages counted once, and their CPU time."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._cpu_s: dict[int, float] = {}
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            kin = family(self._pid)
            self.peak_bytes = max(self.peak_bytes, sum(map(_held_bytes, kin)))
            self._cpu_s |= {pid: used for pid in kin if (used := _used_s(pid)) > 0}


def family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text("ascii").split():
                found += family(int(child))
        except OSError:
            continue
    return found


def _held_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _used_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_audit", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000, help="sent and received together")
    parser.add_argument("--directory", type=Path, help="where records are, or are written if there are none")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-audit-") as temporary:
        directory = options.directory or Path(temporary)
        note = directory / "planted.json"
        if not note.exists():
            directory.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(write_records(directory, options.rows)))
        planted = json.loads(note.read_text())
        return _measure(directory, planted, options.master)


def _measure(directory: Path, planted: dict[str, int], master: str) -> int:
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "audit", "--master", master, "--json"]
    command += ["--sent", str(directory / "sent.ndjson"), "--received", str(directory / "received.ndjson")]
    command += ["--out", str(directory / "audit")]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    watch = Watch(process.pid)
    out, _ = process.communicate()
    seconds = time.monotonic() - began
    watch.stop()
    verdict = json.loads(out.splitlines()[-1])
    found = {name: verdict[name] for name in planted}
    rows = planted["sent"] + planted["received"]
    used = f"{watch.cpu_s:.0f} s of CPU time, {watch.peak_bytes / 2**30:.2f} GiB at most"
    print(f"{rows:,} rows in {seconds:.1f} s: {used}")
    print("the verdict is the planted one" if found == planted else f"planted {planted}\nfound   {found}")
    return 0 if found == planted else 1


if __name__ == "__main__":
    sys.exit(main())
