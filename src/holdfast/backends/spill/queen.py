"""Files that Queen MQ has spilled, as files of this spill.

A line of Queen MQ has these fields and no others, and no sum::

    {"queue", "partition", "payload", "transaction_id", "trace_id", "namespace", "task"}

It becomes the push that it was. It has no time, so it gets that of its file's name, and within a file the order of the
lines stays. Its id follows from the transaction id, or else from the file's name and the number of the line, so a file
that is read again gives the same ids. A damaged line of Holdfast's own is never taken for one of Queen MQ: it has more
fields than the damage of one could hide.

Queen MQ's documents show names with the first twelve digits of a UUID only. The missing digits are filled up.

`adopt` runs before anything is stored. **Crash cases.**

- *Killed while the lines are rewritten*: they are in a file of another name (`.adopted`), which the next start makes
  anew. The original is untouched.
- *Killed between that and the renaming*: the lines have their sums, under the old name. The next start renames it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

import msgspec

from holdfast.backends.spill import events, fields, sums
from holdfast.backends.spill.events import BadLine, Event
from holdfast.model.push_ids import push_id
from holdfast.storage.durable import sync_data, sync_directory
from holdfast.wire.push_batch import DEFAULT_PARTITION

if TYPE_CHECKING:
    from holdfast.backends.spill.files import SpillFile


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    queue: str
    payload: msgspec.Raw
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    trace_id: str | None = None
    namespace: str | None = None
    task: str | None = None


_decode: Final = msgspec.json.Decoder(_Line).decode
_decode_any: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SHORT_NAME_CHARACTERS: Final = 13
_FILLED_UP: Final = "-7000-8000-000000000000"


def file_id(text: str) -> UUID:
    """The id that is in a file's name, whole or not."""
    return UUID(text if is_whole(text) else text + _FILLED_UP)


def is_whole(text: str) -> bool:
    """Whether the id in a file's name has all its digits."""
    return len(text) > _SHORT_NAME_CHARACTERS


def time_ms(file: UUID) -> int:
    return file.int >> 80


def event_of(line: bytes, time_ms: int, line_id: str | None = None) -> tuple[Event, bytes] | None:
    """A line as one of ours, without its sum; none unless it is one of Queen MQ.

    `line_id` is its id if it has no transaction id.
    """
    try:
        read = _decode(line)
        line.decode()
    except (ValueError, RecursionError):
        return None
    partition, transaction_id = read.partition or DEFAULT_PARTITION, read.transaction_id or ""
    more = {"namespace": read.namespace or "", "task": read.task or ""}
    event = Event(
        queue=read.queue,
        partition=partition,
        transaction_id=transaction_id,
        trace_id=read.trace_id or "",
        namespace=more["namespace"],
        task=more["task"],
        number=None,
        time=time_ms,
        at=time_ms,
        id=push_id(partition, transaction_id) if transaction_id else line_id,
        push=not any(more.values()),
    )
    if not event.push:
        headers = {"transaction-id": transaction_id, "trace-id": read.trace_id or "", **more}
        event.key, event.headers = partition, [[name, text] for name, text in headers.items() if text]
    return event, fields.encode(event)[:-1] + b"," + fields.field(bytes(read.payload))


def events_of(data: bytes, file: SpillFile) -> tuple[list[Event | None], list[BadLine]]:
    """As `events.events_of`, of a file that may not be adopted yet."""
    read, bad = events.events_of(data)
    if not bad:
        return read, bad
    left = []
    for each in bad:
        made = event_of(each.line, time_ms(file.id))
        if made is None:
            left.append(each)
        else:
            read[each.place] = made[0]
    return read, left


def line_of(line: bytes, file: UUID, number: int) -> bytes | None:
    """A line of Queen MQ as one of ours, with its sum; `number` is its place in the file."""
    if sums.fault(line) is None:
        return None
    made = event_of(line, time_ms(file), str(uuid5(file, str(number))))
    return None if made is None else sums.summed(b"", [made[1]])[:-1]


def is_of_queen(path: Path) -> bool:
    """Whether a file, perhaps one in `failed`, has lines of Queen MQ. Our own files have none, there or elsewhere."""
    with path.open("rb") as file:
        for line in map(_without_break, file):
            if event_of(line, 0) is not None:
                return True
            if sums.fault(line) is None or _is_noted(line):
                return False
    return False


def is_half_adopted(path: Path) -> bool:
    """Whether a file with a name of Queen MQ has lines of ours."""
    with path.open("rb") as file:
        return any(sums.fault(_without_break(line)) is None for line in file)


def _without_break(line: bytes) -> bytes:
    return line.removesuffix(b"\n")


def _is_noted(line: bytes) -> bool:
    """Whether this is how we keep a line in `failed`: with a reason."""
    try:
        return "reason" in _decode_any(line)
    except (ValueError, RecursionError):
        return False


def adopt(file: SpillFile, target: Path) -> bool:
    """Give the lines of a file sums, if they have none, and the file a place and a name of ours. Raises `OSError`.

    False if it was ours already.
    """
    with file.path.open("rb") as given:
        first = _without_break(given.readline())
    is_rewritten = sums.fault(first) is not None and _rewrite(file)
    if file.path == target:
        return is_rewritten
    file.path.rename(target)
    for directory in {target.parent, file.path.parent}:
        sync_directory(directory)
    return True


def _rewrite(file: SpillFile) -> bool:
    """Whether any line was rewritten."""
    made = file.path.with_name(f"{file.path.name}.adopted")
    count = 0
    with file.path.open("rb") as given, made.open("w+b") as new:
        for number, line in enumerate(given):
            ours = line_of(_without_break(line), file.id, number)
            count += ours is not None
            new.write(line if ours is None else ours + b"\n")
        new.flush()
        sync_data(new.fileno())
    if not count:
        made.unlink()
        return False
    made.replace(file.path)
    sync_directory(file.path.parent)
    return True
