"""Files of spills by their names: which there are, and how they are moved without one taking another's place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from holdfast.backends.spill import events, files
from holdfast.backends.spill.files import LOCK, RECOVERING
from holdfast.model.errors import DataDirectoryError
from holdfast.model.limits import MIB
from holdfast.model.push_ids import is_uuid
from holdfast.recovery.errors import RecoveryChanged

# The names of a spill, and those that Queen MQ has given, of which its documents show the first twelve digits only.
_NAME: Final = re.compile(r"(?:failover|qos0)_([0-9a-f]{8}-[0-9a-f]{4}[0-9a-f-]*)\.buf(\.tmp)?\Z")
# As transactions of a PostgreSQL are named (`backends.postgres.transaction.Mark`).
_TRIED: Final = re.compile(r"[0-9a-f-]{36}:[0-9]+\Z")
RECOVERED: Final = "recovered"
_COMPARED_BYTES: Final = 1 * MIB


class _WithId(msgspec.Struct, gc=False):
    id: str | None = None


_decode_ids: Final = msgspec.json.Decoder(_WithId).decode_lines


def files_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(each for each in directory.iterdir() if _NAME.match(each.name) and each.is_file())


def is_spill(directory: Path) -> bool:
    """Whether a broker, or Queen MQ, has spilled there: what recovering leaves would surprise the owner of another."""
    return (directory / LOCK).exists() or has_files(directory)


def has_files(directory: Path) -> bool:
    """Whether there are files of messages, or were when a recovery took them."""
    return (
        any((directory / name).exists() for name in (RECOVERING, RECOVERED))
        or bool(files_in(directory))
        or bool(files_in(directory / "failed"))
    )


def refuse_links(directory: Path) -> None:
    """Raises `DataDirectoryError` where something in a spill is a symbolic link.

    What it leads to would be moved aside, copied line by line or added to, wherever it is and whosever it is.
    """
    parts = (directory, *(directory / name for name in ("failed", RECOVERING, RECOVERED)))
    for part in parts:
        for each in [part] if part is not directory and part.is_symlink() else part.iterdir() if part.is_dir() else ():
            if each.is_symlink():
                raise DataDirectoryError(
                    f"{each} is a symbolic link, and recovering follows none: put what it leads to there, or remove it"
                )


def take(paths: Iterable[Path], target: Path) -> None:
    """Under the name of a complete file: what a crash left of a line is found when lines are read."""
    for path in list(paths):
        moved = target / path.name.removesuffix(".tmp")
        if moved.exists():
            raise RecoveryChanged(
                f"{moved} is there already; {path} is another file of that name, or a copy: remove it"
            )
        path.rename(moved)


def put(path: Path, target: Path) -> None:
    """Under its name, or another where a copy of it was recovered before."""
    names = chain((path.name,), (f"{path.name}.{number}" for number in count(2)))
    path.rename(next(free for name in names if not (free := target / name).exists()))


def without_copies(found: Iterable[tuple[int, Path]]) -> Iterator[tuple[int, Path]]:
    """Each file once: one that was copied while it was written begins as the whole one does.

    Raises `RecoveryChanged`. Names without a whole UUID may be of different brokers.
    """
    kept: dict[str, tuple[int, Path]] = {}
    for place, path in sorted(found, key=lambda pair: -pair[1].stat().st_size):
        _, other = kept.setdefault(str(path) if id_of(path.name) is None else path.name, (place, path))
        if other is not path and not _begins_with(other, path):
            raise RecoveryChanged(
                f"{path} and {other} have one name and are different files; recover one of them alone"
            )
    return iter(kept.values())


def _begins_with(whole: Path, part: Path) -> bool:
    with whole.open("rb") as one, part.open("rb") as other:
        while piece := other.read(_COMPARED_BYTES):
            if one.read(len(piece)) != piece:
                return False
    return True


def id_of(name: str) -> UUID | None:
    match = _NAME.match(name)
    assert match is not None, "it was listed"
    return UUID(match[1]) if is_uuid(match[1]) else None


def lacks_ids(path: Path) -> bool:
    """Whether some line of Holdfast's own has no id: such lines come from stores alone that count them themselves."""
    position = 0
    while data := files.read_piece(path, position):
        position += len(data)
        # Of some lines only ids are looked at, which is many times faster, and nearly always enough.
        try:
            may_lack = any(line.id is None for line in _decode_ids(data))
        except (ValueError, RecursionError):
            may_lack = True
        if may_lack and any(event is not None and event.id is None for event in events.events_of(data)[0]):
            return True
    return False


def has_unknown_fates(path: Path) -> bool:
    """Whether a push of some line in a file of `failed`, which has no id, was sent to a PostgreSQL and not answered."""
    lines = [each.event.encode() for each in files.failed_lines(path) if each.event is not None]
    return any(
        event is not None and event.id is None and _TRIED.match(event.tried or "")
        for line in lines
        for event in events.events_of(line + b"\n")[0]
    )


def time_ms(path: Path) -> int:
    """Names begin with the milliseconds of their making, in twelve digits."""
    match = _NAME.match(path.name)
    assert match is not None, "it was listed"
    return int(match[1][:13].replace("-", ""), 16)
