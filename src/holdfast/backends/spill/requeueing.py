"""Lines of `failed` become a file again, to be stored before all others.

They move from one file to another in three changes, each durable before the next one: the lines are marked (`again`),
the new file is made of all that are marked, and they go from `failed`.

**Crash cases.** The next start finishes all of them before it lists the files that are to be stored.

- *Killed while lines are marked*: `failed` is as it was, or all of them are marked, and the line that stood for them,
  which is stored, is gone.
- *Killed once lines are marked, or the new file is there*: it is made, or made again. It has the same name then, as it
  has the same content. Nothing of it is stored while its lines are in `failed`.
- *Killed while the new file is written*: half of it has a name in `failed` that nobody reads.
- *Killed once the lines are gone*: the new file is one like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.backends.spill import events, files, queen
from holdfast.backends.spill.files import Failed, SpillDirectory, SpillFile
from holdfast.storage.durable import replace_file, sync_directory, write_file


class Requeued(NamedTuple):
    """Lines of `failed` that are a file to be stored now."""

    file: SpillFile
    content: bytes
    messages: int


def requeue(directory: SpillDirectory) -> int:
    """Put the lines of `failed` that can be read in front of all others; how many they are. Raises `OSError`.

    They are older than what waits, and what waits of their topics must not overtake them.
    """
    finish_requeues(directory)
    count = 0
    for path in files.failed_files(directory.path):
        mark_for_requeue(directory, path)
        requeued = write_marked(directory, path)
        if requeued is not None:
            drop_marked(directory, path)
            count += requeued.messages
    return count


def finish_requeues(directory: SpillDirectory) -> None:
    """Finish what a crash has cut off, before the files are listed. Raises `OSError`."""
    for path in files.failed_files(directory.path):
        if write_marked(directory, path) is not None:
            drop_marked(directory, path)


def mark_for_requeue(
    directory: SpillDirectory,
    path: Path,
    is_wanted: Callable[[Failed], bool] = lambda line: True,
    *,
    stored: int | None = None,
) -> None:
    """Decide which lines of a file of `failed` become a file again, as far as they can be read. Raises `OSError`.

    `stored`: the number of a line that is stored by now. It goes from `failed`.

    Of a file that is still there nobody can say whether its lines count as done.
    """
    if is_unfinished(directory.path, path):
        return
    noted = files.failed_lines(path)
    before = directory.file_before(path, b"")
    left = [
        msgspec.structs.replace(line, again=True) if is_wanted(line) and storable(line, before) is not None else line
        for line in noted
        if line.line != stored
    ]
    if left != noted:
        _rewrite(path, left)
        sync_directory(path.parent)


def write_marked(directory: SpillDirectory, path: Path) -> Requeued | None:
    """Make the file of the lines that are marked; none where no line is. Raises `OSError`."""
    if not path.exists():
        return None
    before = directory.file_before(path, b"")
    again = [good for line in files.failed_lines(path) if line.again and (good := storable(line, before)) is not None]
    if not again:
        return None
    content = b"".join(line + b"\n" for line in again)
    requeued = Requeued(directory.file_before(path, content), content, len(again))
    # Beside the file, half of it would be taken for one that was being written.
    half = path.with_name(f"{requeued.file.path.name}.tmp")
    write_file(half, content)
    half.replace(requeued.file.path)
    sync_directory(directory.path)
    return requeued


def drop_marked(directory: SpillDirectory, path: Path) -> None:
    """The lines that are marked are a file by now, and go from `failed`. Raises `OSError`; can be repeated then."""
    if path.exists():
        before = directory.file_before(path, b"")
        noted = files.failed_lines(path)
        left = [line for line in noted if not is_marked(line, before)]
        if left != noted:
            _rewrite(path, left)
    sync_directory(path.parent)


def is_marked(line: Failed, file: SpillFile) -> bool:
    """Whether a line is on its way. One that was damaged since stays."""
    return line.again and storable(line, file) is not None


def _rewrite(path: Path, lines: list[Failed]) -> None:
    if lines:
        replace_file(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    else:
        path.unlink()


def is_unfinished(directory: Path, failed: Path) -> bool:
    """Whether the file is still there, here or in a recovery in bulk, of which these lines are in `failed`."""
    return any((place / failed.name).exists() for place in (directory, directory / files.RECOVERING))


def storable(line: Failed, file: SpillFile) -> bytes | None:
    """A line as it is to be stored; none if it cannot be read. One of Queen MQ gets a sum."""
    if line.event is None:
        return None
    data = line.event.encode()
    if not events.events_of(data + b"\n")[1]:
        return data
    return queen.line_of(data, file.id, line.line)
