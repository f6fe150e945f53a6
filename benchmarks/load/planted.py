"""What pipelines are run on: record files for an audit and spills for a recovery, with planted flaws."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from holdfast.backends.spill import pushes
from holdfast.model.ids import TopicName
from holdfast.model.push_ids import push_ids
from holdfast.wire.push_batch import Pushed

Planted = dict[str, int]

PARTITIONS: Final = 4

# --- records --------------------------------------------------------------------------------------------

PRODUCERS: Final = 4
# Every so many messages of a producer have this flaw; numbers without a common factor, so that flaws rarely meet.
LOST_EVERY: Final = 100_003
DOUBLED_EVERY: Final = 70_001
SWAPPED_EVERY: Final = 50_021
PHANTOM_EVERY: Final = 90_001
RATE_PER_S: Final = 50_000
_CHUNK: Final = 10_000


def write_records(directory: Path, rows: int) -> Planted:
    """`sent.ndjson` and `received.ndjson` with about `rows` lines together; returns the verdict they deserve."""
    each = rows // 2 // PRODUCERS
    planted = dict.fromkeys(("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom"), 0)
    with open(directory / "sent.ndjson", "w") as sent, open(directory / "received.ndjson", "w") as received:
        for first in range(0, each, _CHUNK):
            numbers = range(first, min(first + _CHUNK, each))
            for producer in range(PRODUCERS):
                sent.writelines(_sent(producer, numbers))
                planted["sent"] += len(numbers)
                for line in _received(producer, numbers, planted):
                    received.write(line)
                    planted["received"] += 1
    planted["acknowledged"] = planted["sent"]
    return planted


def _sent(producer: int, numbers: range) -> Iterator[str]:
    for number in numbers:
        yield (
            f'{{"topic":"orders","id":"p{producer}/{number}","sequence":{number},"time_ms":{_sent_ms(number)},'
            f'"acknowledged":true,"partition":{producer % PARTITIONS}}}\n'
        )


def _received(producer: int, numbers: range, planted: Planted) -> Iterator[str]:
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
        if number % DOUBLED_EVERY == 13:
            yield _received_line(producer, f"p{producer}/{number}", number)
            planted["duplicated"] += 1
        if number % PHANTOM_EVERY == 17:
            yield _received_line(producer, f"nobody/{producer}-{number}", number)
            planted["phantom"] += 1


def _received_line(producer: int, name: str, number: int) -> str:
    at_ms = _sent_ms(number) + 1 + hash((producer, number)) % 20
    return (
        f'{{"topic":"orders","id":"{name}","sequence":{number},"time_ms":{at_ms},"broker":"127.0.0.1:8090",'
        f'"receiver":"reader","partition":{producer % PARTITIONS}}}\n'
    )


def _sent_ms(number: int) -> int:
    return 1_700_000_000_000 + number * PRODUCERS * 1000 // RATE_PER_S


# --- spills ---------------------------------------------------------------------------------------------

BROKERS: Final = 4
QUEUES: Final = ("orders", "payments", "audit-trail", "metrics")
# One push, as brokers take them; in each millisecond of the outage one comes, to one of the brokers.
PUSH_EVENTS: Final = 100
FILE_EVENTS: Final = 10_000
BEGAN_MS: Final = 1_763_269_200_000
# Every so many pushes, a broker that did not answer in time had kept the push before the next one did.
COPIED_EVERY: Final = 1_009
# In every so many files, the last line is damaged.
DAMAGED_FILES: Final = 7


def write_spills(directory: Path, events: int) -> Planted:
    """A directory `broker-N` for each broker; returns what is planted."""
    planted = {"files": 0, "events": 0, "duplicates": 0, "set_aside": 0}
    spills = [_Spill(directory / f"broker-{number}", planted) for number in range(BROKERS)]
    for number, lines in enumerate(_pushes(events)):
        spills[number % BROKERS].add(lines, BEGAN_MS + number)
        if number % COPIED_EVERY == 0:
            spills[(number + 1) % BROKERS].add(lines, BEGAN_MS + number)
            planted["duplicates"] += PUSH_EVENTS
    for spill in spills:
        spill.complete()
    planted["stored"] = planted["events"] - planted["duplicates"] - planted["set_aside"]
    return planted


def _uuid7(time_ms: int, bits: int) -> str:
    return str(UUID(int=time_ms << 80 | 7 << 76 | (bits >> 62) << 64 | 1 << 63 | bits & (1 << 62) - 1))


def _pushes(events: int) -> Iterator[bytes]:
    chance = Random(16)
    for number in range(events // PUSH_EVENTS):
        time_ms = BEGAN_MS + number
        queue, place = QUEUES[number % len(QUEUES)], number // len(QUEUES) % PARTITIONS
        names = [f"customer-{place}-{each % 10}" for each in range(PUSH_EVENTS)]
        transactions = [_uuid7(time_ms, chance.getrandbits(74)) for _ in names]
        values = [b'{"number": %d, "item": "tea", "count": 3, "note": "%s"}' % (number, b"x" * 40) for _ in names]
        pushed = Pushed(names, values, push_ids(names, transactions), transactions, [None] * len(names), has_json=True)
        yield pushes.lines_of(TopicName(queue), dict.fromkeys(names, place), pushed, time_ms, time_ms)


class _Spill:
    """The directory of a broker, while it is written."""

    def __init__(self, directory: Path, planted: Planted) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._planted = planted
        self._lines: list[bytes] = []
        self._began_ms = 0

    def add(self, lines: bytes, time_ms: int) -> None:
        if not self._lines:
            self._began_ms = time_ms
        self._lines.append(lines)
        if len(self._lines) * PUSH_EVENTS >= FILE_EVENTS:
            self.complete()

    def complete(self) -> None:
        if not self._lines:
            return
        data = bytearray(b"".join(self._lines))
        if self._planted["files"] % DAMAGED_FILES == 3:
            data[-20] ^= 1  # within the sum of the last line
            self._planted["set_aside"] += 1
        name = _uuid7(self._began_ms, self._planted["files"])
        (self._directory / f"failover_{name}.buf").write_bytes(data)
        self._planted["files"] += 1
        self._planted["events"] += len(self._lines) * PUSH_EVENTS
        self._lines = []
