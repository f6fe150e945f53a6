"""What a batch holds: how many rows, a checksum of them, and the place in its sources.

The sink has the brokers keep that with the writer's last number. When the same number comes again, a batch with the
same place is the same batch, although a function that rolls dice made other rows of it this time. Where the place is
not known, the rows have to be the same.

A checksum adds up what each row gives, so tasks sum their own rows, in any order, and the driver adds the sums.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from holdfast.spark.errors import BatchDiffers, with_code

# What the brokers keep of each of the three numbers; holdfast.model.transactions has the same, and needs msgspec.
_BITS: Final = 46
_MOST: Final = (1 << _BITS) - 2
_OFFSETS: Final = "offsets"
# Lines of a file of offsets before those of the sources: the version, and what Spark notes of the batch.
_HEAD_LINES: Final = 2
_VERSION: Final = "v1"
# Of this one each source has its number in front: `0:{…}`.
_VERSION_NUMBERED: Final = "v2"
_FILES: Final = "sources"
_TOLD_CHARACTERS_MAX: Final = 300


class RowSum(NamedTuple):
    """How many rows, and the sum of what each row gives, modulo 2**64."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: object) -> RowSum:
        if not isinstance(other, RowSum):
            return NotImplemented
        return RowSum(self.rows + other.rows, (self.total + other.total) % (1 << 64))


NO_ROWS: Final = RowSum()


class Contents(NamedTuple):
    """What is kept with a writer's number."""

    rows: int
    checksum: int
    source: int | None = None

    def as_json(self) -> dict[str, int | None]:
        return self._asdict()


class Place(NamedTuple):
    """Which messages or files a batch was made of, as a number and in words.

    `cursors` are those of its groups: the topic and the name of each. `messages` are its offsets, where all of its
    sources are topics.
    """

    digest: int
    told: str
    cursors: frozenset[tuple[str, str]] = frozenset()
    messages: int | None = None


def contents(rows: RowSum, place: Place | None) -> Contents:
    folded = rows.total ^ rows.total >> _BITS
    return Contents(min(rows.rows, _MOST), folded & ((1 << _BITS) - 1), None if place is None else place.digest)


def contents_from_json(answer: Any) -> Contents | None:
    """What a broker keeps, if it does."""
    if not isinstance(answer, Mapping) or "rows" not in answer or "checksum" not in answer:
        return None
    source = answer.get("source")
    return Contents(int(answer["rows"]), int(answer["checksum"]), None if source is None else int(source))


def is_same(one: Contents, other: Contents) -> bool:
    if one.source is not None and other.source is not None:
        return one.source == other.source
    return one[:2] == other[:2]


def differs(before: Contents, now: Contents, which: str, told: str) -> Exception:
    """The error for another batch under a number that is committed."""
    rows = f"with {before.rows} rows then, and comes with {now.rows} now"
    if before.rows == now.rows:
        rows = f"with other contents: {before.rows} rows both times, of which some differ"
        if before[:2] == now[:2]:
            rows = f"for another place in its sources: the {now.rows} rows are equal"
    return with_code(BatchDiffers, f"{which} was committed {rows}. These rows are not written. {told}")


# --- rows -----------------------------------------------------------------------------------------------


def summed(batch: Any, columns: tuple[str, ...]) -> RowSum:
    """What the rows of an Arrow batch give; of columns that are not there, nothing."""
    import numpy as np

    mixed = np.zeros(batch.num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for number, name in enumerate(columns):
            if name in batch.schema.names:
                mixed = (mixed ^ (_sums(batch.column(name)) + np.uint64(number))) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(29)
    return RowSum(batch.num_rows, int(mixed.sum(dtype=np.uint64)))


def _sums(column: Any) -> Any:
    """A number for each value; null is none that a value has."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        values: list[bytes | None] = [None if each is None else repr(each).encode() for each in column.to_pylist()]
    else:
        values = column.cast(pa.large_binary()).to_pylist()
    if column.null_count == len(values):
        return np.full(len(values), 1 << 32, np.uint64)
    sums = map(crc32, values) if not column.null_count else map(_sum, values)  # type: ignore[arg-type]
    return np.fromiter(sums, np.uint64, len(values))


def _sum(value: bytes | None) -> int:
    return 1 << 32 if value is None else crc32(value)


# --- places ---------------------------------------------------------------------------------------------


def place_of(checkpoint: str | None, batch: int) -> Place | None:
    """Where a batch begins and ends in its sources, as the checkpoint says; none where that cannot be read here.

    A checkpoint on another file system than this machine's is read by Java only.
    """
    directory = _local(checkpoint)
    if directory is None:
        return None
    ends = _sources(directory / _OFFSETS / str(batch))
    starts = _sources(directory / _OFFSETS / str(batch - 1)) if batch else []
    if not ends or starts is None:
        return None
    starts += repeat(None, len(ends) - len(starts))
    compared: list[Any] = [[_essence(each) for each in side] for side in (starts, ends)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=False)):
        if (end_file := _file_number(end)) is not None:
            found = _files_of(directory / _FILES / str(number), _file_number(start), end_file)
            if found is None:
                return None
            compared.append(found)
    digest = hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).digest()
    words = ", ".join(_told(start, end) for start, end in zip(starts, ends, strict=False))
    cursors = {
        (topic, str(each["group"]))
        for each in ends
        if isinstance(each, dict) and "group" in each
        for topic in each[_OFFSETS]
    }
    messages = None
    if all(isinstance(end, dict) for end in ends):
        spans = [span for start, end in zip(starts, ends, strict=False) for span in _spans(start, end)]
        messages = sum(end - begin for _, begin, end in spans)
    return Place(int.from_bytes(digest[:8], "big") % (_MOST + 1), words, frozenset(cursors), messages)


def is_readable_here(checkpoint: str) -> bool:
    """Whether places can be read: a checkpoint on another file system is read by Java only."""
    return _local(checkpoint) is not None


def _local(checkpoint: str | None) -> Path | None:
    if checkpoint is None:
        return None
    scheme, separator, path = checkpoint.partition(":")
    if not separator or "/" in scheme:
        return Path(checkpoint)
    return Path("/" + path.lstrip("/")) if scheme == "file" else None


def _sources(file: Path) -> list[Any] | None:
    """The offset of each source; that of a topic is an object."""
    try:
        version, *lines = file.read_text().splitlines()
    except (OSError, ValueError):
        return None
    lines = lines[_HEAD_LINES - 1 :]
    if version == _VERSION_NUMBERED:
        lines = [line.partition(":")[2] for line in lines]
    elif version != _VERSION:
        return None
    return [_parsed(line) for line in lines]


def _file_number(source: Any) -> int | None:
    """Of a source of files, the number in its log: which files that means is decided when Spark looks for new ones."""
    try:
        value = json.loads(source) if isinstance(source, str) else None
    except ValueError:
        return None
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else None


def _files_of(log: Path, start: int | None, end: int) -> list[Any] | None:
    """The files behind one number of a log and up to another; none where the log cannot be read here."""
    found: list[Any] = []
    for number in range(0 if start is None else start + 1, end + 1):
        file = log / str(number)
        try:
            # Some have all files of those before them, too.
            lines = (file if file.exists() else log / f"{number}.compact").read_text().splitlines()[1:]
            files = [json.loads(line) for line in lines]
            found += sorted([each["path"], each["timestamp"]] for each in files if each["batchId"] == number)
        except (OSError, ValueError, KeyError, TypeError):
            return None
    return found


def _parsed(line: str) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    return value if isinstance(value, dict) and isinstance(value.get(_OFFSETS), dict) else line


def _essence(source: Any) -> Any:
    """What says which messages: not who reads them, and where from."""
    if not isinstance(source, dict):
        return source
    return {name: source.get(name) for name in (_OFFSETS, "created_ms", "began")}


def _told(start: Any, end: Any) -> str:
    if not isinstance(end, dict):
        return f"{start} to {end}"[:_TOLD_CHARACTERS_MAX]
    words = ", ".join(f"{place} from {first} to {last}" for place, first, last in _spans(start, end))
    return words[:_TOLD_CHARACTERS_MAX]


def _spans(start: Any, end: Any) -> list[tuple[str, int, int]]:
    """Of each partition of a source, the first offset of a batch and the one behind its last."""
    began = end.get("began", {}) if not isinstance(start, dict) else start[_OFFSETS]
    return [
        (
            f"{topic}/{number}",
            int(began.get(topic, {}).get(number, end.get("began", {}).get(topic, {}).get(number, 0))),
            int(offset),
        )
        for topic, numbers in end[_OFFSETS].items()
        for number, offset in numbers.items()
    ]
