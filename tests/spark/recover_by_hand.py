"""Random spill directories, and in plain Python what a recovery of them must come to."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.backends.spill import events
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.push_ids import push_id, push_ids
from holdfast.wire import batch_builder, push_batch
from holdfast.wire.push_batch import Pushed

BEGAN_MS = 1_763_269_200_000
PARTITIONS = 3
BROKERS = 3
Place = tuple[str, int]


@dataclass
class Line:
    """A line of a file: what it says, and what becomes of it."""

    text: bytes
    queue: str = ""
    number: int = 0
    time_ms: int = 0
    at_ms: int = 0
    id: str | None = None
    value: bytes = b""
    is_good: bool = True

    @property
    def place(self) -> Place:
        return self.queue, self.number


@dataclass
class File:
    """Lines, and whether a crash cut the last one off. `stored`: how many its broker had stored."""

    directory: Path
    name: str
    lines: list[Line] = field(default_factory=list)
    is_torn: bool = False
    stored: int = 0

    @property
    def id(self) -> UUID:
        return UUID(self.name.partition("_")[2][:36])

    def write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        data = b"".join(line.text + b"\n" for line in self.lines)
        torn = self.lines[-1].text[:-5] if self.is_torn and self.lines else b""
        path = self.directory / (f"{self.name}.tmp" if self.is_torn else self.name)
        path.write_bytes(data + torn)

    @property
    def has_rest(self) -> bool:
        return self.is_torn and bool(self.lines) and len(self.lines[-1].text) > 5


class Spills:
    """Directories of some brokers, made of dice; every case has queues of its own."""

    def __init__(self, root: Path, dice: random.Random, cases: int, prefix: str = "case") -> None:
        self._root = root
        self._dice = dice
        self._serial = 0
        self.files: list[File] = []
        for broker in range(BROKERS):
            for number in range(dice.randint(2, 4)):
                made = UUID(int=(BEGAN_MS + number * 50) << 80 | 7 << 76 | 1 << 63 | dice.getrandbits(62))
                name = f"{'failover' if dice.random() < 0.8 else 'qos0'}_{made}.buf"
                self.files.append(File(root / f"broker-{broker}", name, is_torn=dice.random() < 0.2))
        self.queen = File(root / "broker-0", "failover_019a0c11-7fe8.buf")
        for case in range(cases):
            self._add_case(f"{prefix}-{case}")
        for file in self.files:
            if not file.is_torn and file.lines and dice.random() < 0.3:
                file.stored = dice.randint(0, len(file.lines))
        self.files.append(self.queen)

    @property
    def directories(self) -> list[str]:
        return sorted({str(file.directory) for file in self.files})

    def write(self) -> None:
        for file in self.files:
            file.write()

    # --- what there is ----------------------------------------------------------------------------------

    def _add_case(self, queue: str) -> None:
        made: list[Line] = []
        for _ in range(self._dice.randint(0, 40)):
            chance = self._dice.random()
            file = self._dice.choice(self.files)
            if chance < 0.15 and made:
                # The same message again, kept by another broker at another time.
                line = self._again(self._dice.choice(made))
            elif chance < 0.25:
                line = self._bad(queue)
            elif chance < 0.32:
                file, line = self.queen, self._of_queen(queue)
            else:
                line = self._line(queue)
            if line.id is not None and line.is_good and file is not self.queen:
                made.append(line)
            file.lines.append(line)

    def _times(self) -> tuple[int, int]:
        """Few different ones: clocks tie."""
        time_ms = BEGAN_MS + self._dice.randint(0, 6)
        return time_ms, time_ms + self._dice.randint(0, 2)

    def _line(self, queue: str) -> Line:
        number = self._dice.randrange(PARTITIONS)
        time_ms, at_ms = self._times()
        self._serial += 1
        value = self._dice.choice((b'{"n": %d}', b"text %d", b"\xff\x00 %d")) % self._serial
        if self._dice.random() < 0.5:
            return self._pushed(queue, number, time_ms, at_ms, value)
        key = self._dice.choice((None, b"key", b"\xfe"))
        message_id = self._dice.choice((None, f"id-{self._serial}"))
        headers = [("trace-id", b"t"), ("raw", b"\xfd")] if self._dice.random() < 0.3 else []
        message = NewMessage(value=value, key=key, id=message_id, headers=headers)
        is_chosen = key is None or self._dice.random() < 0.7
        batch = batch_builder.build_batch([message], time_ms)
        partition = PartitionId(TopicName(queue), number)
        text, _ = events.lines_of(partition, batch, at_ms, is_chosen=is_chosen)
        if not is_chosen:
            number = _by_token(key or b"")
        return Line(text[:-1], queue, number, time_ms, at_ms, message_id, value)

    def _pushed(self, queue: str, number: int, time_ms: int, at_ms: int, value: bytes) -> Line:
        names, transactions = [f"name-{number}"], [f"tx-{self._serial}"]
        ids = push_ids(names, transactions)
        batch = push_batch.build(Pushed(names, [value], ids, transactions, [None]), time_ms)
        text, _ = events.lines_of(PartitionId(TopicName(queue), number), batch, at_ms)
        return Line(text[:-1], queue, number, time_ms, at_ms, ids[0], value)

    def _again(self, line: Line) -> Line:
        """Another broker has taken it at another time."""
        time_ms, at_ms = self._times()
        message = NewMessage(value=line.value, id=line.id)
        batch = batch_builder.build_batch([message], time_ms)
        text, _ = events.lines_of(PartitionId(TopicName(line.queue), line.number), batch, at_ms)
        return Line(text[:-1], line.queue, line.number, time_ms, at_ms, line.id, line.value)

    def _of_queen(self, queue: str) -> Line:
        self._serial += 1
        name = self._dice.choice(("Default", "customer-123"))
        transaction = self._dice.choice(("", f"queen-{self._serial}"))
        payload = {"id": self._serial}
        more = {"namespace": "sales", "task": "process"} if self._dice.random() < 0.5 else {"namespace": "", "task": ""}
        fields: dict[str, Any] = {"queue": queue, "partition": name, "payload": payload, "transaction_id": transaction}
        text = json.dumps({**fields, "trace_id": "", **more}, separators=(",", ":")).encode()
        time_ms = int("019a0c117fe8", 16)
        value = json.dumps(payload, separators=(",", ":")).encode()
        message_id = push_id(name, transaction) if transaction else None
        return Line(text, queue, _by_token(name.encode()), time_ms, time_ms, message_id, value)

    def _bad(self, queue: str) -> Line:
        good = self._line(queue).text
        kind = self._dice.randrange(4)
        if kind == 0:
            place = self._dice.randrange(len(good))
            flipped = bytes([good[place] ^ 1])
            text = good[:place] + (flipped if flipped not in (b"\n",) else b"\x7f") + good[place + 1 :]
        elif kind == 1:
            text = self._dice.choice((b"", b"not JSON", b"\xff\xfe", b"{}", b'{"queue":"x"}'))
        elif kind == 2:
            text = good[: self._dice.randrange(len(good))]
        else:
            text = self._line("no topic, has commas").text
        return Line(text, is_good=False)

    # --- what it comes to -------------------------------------------------------------------------------

    def expected(self, known: set[tuple[str, int, str]]) -> tuple[dict[Place, list[bytes]], Counter[str]]:
        """The values of each partition in order, and the counts; `known` is what the store has."""
        counts: Counter[str] = Counter(files=len(self.files))
        sorted_files = sorted(self.files, key=lambda file: (str(file.directory), _name_ms(file.name), file.name))
        good = []
        for source, file in enumerate(sorted_files):
            counts["already_stored"] += file.stored
            counts["set_aside"] += file.has_rest
            counts["events"] += len(file.lines) + file.has_rest
            for number, line in enumerate(file.lines[file.stored :], file.stored):
                if line.is_good:
                    good.append(((line.time_ms, line.at_ms, source, number), line))
                else:
                    counts["set_aside"] += 1
        found: dict[Place, list[bytes]] = {}
        seen = set(known)
        for _, line in sorted(good, key=lambda pair: pair[0]):
            mark = (*line.place, line.id)
            if line.id is not None and mark in seen:
                counts["duplicates"] += 1
                continue
            seen.add(mark)  # type: ignore[arg-type]
            found.setdefault(line.place, []).append(line.value)
            counts["stored"] += 1
        return found, counts


def _name_ms(name: str) -> int:
    return int(name.partition("_")[2][:13].replace("-", ""), 16)


def _by_token(token: bytes) -> int:
    return zlib.crc32(token) % PARTITIONS
