"""The files of a recovery: taken over from the brokers' directories, and given back when everything is stored.

In each directory of a spill (`backends/spill/files.py`)::

    recovering/                    files that no broker sees any more: they are being recovered
    recovering/recovery.json       `Backlog`: which recovery, which directories and files it has; alike in all of them
    recovered/                     files that are stored; nobody needs them
    failed/<file>                  lines that cannot be read, in the spill's own format

Everything is done while all directories are locked, as a broker locks its own. Files are renamed and never deleted.

**Crash cases.** The steps are: files go to `recovering`; `recovery.json` is written into each directory; the store is
told that the recovery has begun; messages are stored; `recovery.json` is written again with what became of them; the
store is told that it is done; files go to `recovered` and `recovery.json` is removed, directory by directory.

- *Before the store was told of the beginning*: nothing is stored. Whatever is in `recovering` is taken together with
  what came later, as another recovery.
- *Between beginning and end*: the next run finds the same set and goes on. It needs all directories of the set, and
  every file as it was. What brokers spilled meanwhile is a recovery of its own, behind this one.
- *After the end*: the store says so, and the rest is moved. What became of the messages stands in the notes, so that
  the run that moves the rest can tell. A note of an older version does not have it: then only what is in `failed` is
  known.

A broker that is started in between does not see the files and spills new ones. It stores those as ever, so they
overtake what is in `recovering`: brokers are better started when a recovery is through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID, uuid4

import msgspec

from holdfast.backends.spill import files, queen, requeueing
from holdfast.backends.spill.files import RECOVERING, SpillDirectory
from holdfast.backends.spill.log_target import Progress, progress_path
from holdfast.model.errors import DataDirectoryError
from holdfast.model.limits import DEDUPE_AGE_MS_MAX
from holdfast.recovery import spill_files
from holdfast.recovery.aside import LOCK, line_numbers
from holdfast.recovery.errors import RecoveryChanged, RecoveryIncomplete, RecoveryUnsure
from holdfast.recovery.spill_files import RECOVERED
from holdfast.storage.durable import replace_file, sync_directory

_NOTE: Final = "recovery.json"
# How far a cluster's spill has stored a file stands beside it, and moves along.
_PROGRESS: Final = ".progress"
# A message is kept a moment before its file gets a name.
_OLDER_THAN_NAME_MS: Final = 1_000
_IF_USED: Final = "stop the broker first: while it runs it stores what waits by itself"
_IF_UNUSABLE: Final = "recovering moves files there: run this as the broker's user, or give it a copy"


class BacklogFile(msgspec.Struct, frozen=True):
    """A file of the set: in which directory it is, and from which line on it is to be stored.

    `time_ms` is when its name was made: lines of Queen MQ have no time of their own. `set_aside` are lines behind the
    first, counted from 1, that its broker has put into `failed`: they are left out.
    """

    place: int
    name: str
    size_bytes: int
    first_line: int
    time_ms: int
    set_aside: list[int] = []

    @property
    def id(self) -> UUID | None:
        """By which a store knows how far a broker has stored it."""
        return spill_files.id_of(self.name)


class Outcome(msgspec.Struct, frozen=True):
    """What became of the lines of a recovery: `queues` are counts by topic (`steps.COUNTS`).

    `skipped` lines had been stored by their brokers, and `set_aside` are in `failed`.
    """

    queues: dict[str, dict[str, int]]
    skipped: int
    set_aside: int


class Backlog(msgspec.Struct, frozen=True):
    """One recovery: everything that decides what its streams are. `topics` has the partitions of those there were.

    `outcome` is there once everything is stored.
    """

    recovery: UUID
    store: str
    order_by: str
    directories: list[str]
    files: list[BacklogFile]
    topics: dict[str, int]
    new_topic_partitions: int
    place: int = 0
    outcome: Outcome | None = None

    @property
    def known_since_ms(self) -> int:
        """From when on messages of the store are compared by id: as long before, as if the store had been there."""
        return min(file.time_ms for file in self.files) - _OLDER_THAN_NAME_MS - DEDUPE_AGE_MS_MAX


class Ledger(Protocol):
    """What a store says of recoveries, and is told. All raise `Unavailable`."""

    @property
    def store_id(self) -> str: ...

    def topics(self) -> dict[str, int]:
        """The partitions of each topic."""
        ...

    def make_topics(self, partitions: Mapping[str, int]) -> None:
        """Make those that are missing."""
        ...

    def stored_lines(self, files: Mapping[UUID, Path]) -> dict[UUID, int]:
        """How many lines of each file its broker has stored."""
        ...

    def has_begun(self, recovery: UUID) -> bool: ...

    def is_done(self, recovery: UUID) -> bool: ...

    def begin(self, recovery: UUID) -> None: ...

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        """All of it is stored; brokers that find a copy of these files leave it out."""
        ...

    def forget(self, recovery: UUID) -> None:
        """Nobody will ask for it again."""
        ...

    def close(self) -> None: ...


class Directories:
    """Spill directories, locked for as long as this is open. Use it as a context. Raises `DataDirectoryError`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = sorted({Path(path).resolve() for path in paths})
        self._opened: list[SpillDirectory] = []
        self._locks = ExitStack()
        self._stored_before: list[tuple[int, Outcome]] = []

    def __enter__(self) -> Directories:
        try:
            # Before anything is written, and into none of them.
            for path in self._paths:
                if not path.is_dir() or not spill_files.is_spill(path):
                    raise DataDirectoryError(f"there is no spill in {path}: no file of a broker's is there")
                spill_files.refuse_links(path)
            for path in self._paths:
                opened = SpillDirectory.open(path, if_used=_IF_USED, if_unusable=_IF_UNUSABLE)
                self._locks.callback(opened.close)
                self._opened.append(opened)
                requeueing.finish_requeues(opened)
        except BaseException:
            self._locks.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def requeue_failed(self) -> int:
        """Put what is in `failed` and can be read in front of everything else; how many lines that are.

        Not where a recovery was begun: it may find some of these lines again, and set them aside again.
        """
        return sum(requeueing.requeue(opened) for opened in self._opened if _noted(opened.path) is None)

    def check_fates(self, is_with_failed: bool = False) -> None:
        """Raises `RecoveryUnsure` where a broker's database may have messages without ids, and it alone can tell.

        How far a broker was with a file stands in that database, and after a power failure files may be back that it
        had stored and deleted: so no file of such lines is certain. Lines in `failed` were refused, and are not there,
        unless a push of theirs was not answered.
        """
        for path in self._paths:
            waiting = (*spill_files.files_in(path), *spill_files.files_in(path / RECOVERING))
            unsure: Iterator[Path] = filter(spill_files.lacks_ids, waiting)
            if is_with_failed:
                unsure = chain(unsure, filter(spill_files.has_unknown_fates, spill_files.files_in(path / "failed")))
            for each in unsure:
                raise RecoveryUnsure(
                    f"{each} has messages without ids that its broker's database may have stored already, and "
                    "only that database can tell: recover into it with --store, or store what may be there twice "
                    "with --allow-duplicates"
                )

    # --- one recovery after the other ------------------------------------------------------------------

    def next_backlog(self, ledger: Ledger, order_by: str, new_topic_partitions: int) -> Backlog | None:
        """The one that was begun, or a new one of all that waits; none where nothing does.

        Raises `RecoveryIncomplete`, `RecoveryChanged`, and what the ledger does.
        """
        for path, begun in self._notes():
            if begun.store != ledger.store_id:
                raise RecoveryChanged(
                    f"{path} has a recovery into another store that was not finished; give that store, or move what "
                    f"is in {RECOVERING} back"
                )
            if ledger.is_done(begun.recovery):
                outcome = begun.outcome or Outcome({}, 0, self.set_aside(begun))
                self._give_back(begun, ledger)
                self._stored_before.append((len(begun.files), outcome))
            elif ledger.has_begun(begun.recovery):
                return self._checked(begun)
            else:
                # Nothing of it is stored: what it has taken is part of another one.
                (path / RECOVERING / _NOTE).unlink()
                sync_directory(path / RECOVERING)
        self._take_over()
        files = self._waiting(ledger)
        if not files:
            return None
        made = Backlog(
            recovery=uuid4(),
            store=ledger.store_id,
            order_by=order_by,
            directories=[str(path) for path in self._paths],
            files=files,
            topics=ledger.topics(),
            new_topic_partitions=new_topic_partitions,
        )
        self._note(made, dict(enumerate(self._paths)))
        ledger.begin(made.recovery)
        return made

    def finish(self, backlog: Backlog, ledger: Ledger, outcome: Outcome) -> None:
        """Everything is stored: say so, and move the files out of the way."""
        self._note(msgspec.structs.replace(backlog, outcome=outcome), self._homes(backlog))
        ledger.end(backlog.recovery, [file.id for file in backlog.files if file.id is not None])
        self._give_back(backlog, ledger)

    @property
    def stored_before(self) -> Sequence[tuple[int, Outcome]]:
        """Recoveries that an earlier run had stored and not given back: how many files, and what became of them."""
        return self._stored_before

    def in_failed(self) -> int:
        """How many lines are in `failed`, whoever put them there: they are not stored."""
        return sum(1 for path in self._paths for each in files.failed_files(path) for _ in line_numbers(each))

    def paths(self, backlog: Backlog) -> list[str]:
        """Where each file of a recovery is now, in the order of its files."""
        homes = self._homes(backlog)
        return [str(homes[file.place] / RECOVERING / file.name) for file in backlog.files]

    def set_aside(self, backlog: Backlog) -> int:
        """How many lines that a recovery had to store are in `failed`, where directories have notes of it."""
        homes = self._homes(backlog)
        return sum(
            number > file.first_line
            for file in backlog.files
            if file.place in homes
            for number in line_numbers(homes[file.place] / "failed" / file.name)
        )

    # --- in the directories ----------------------------------------------------------------------------

    @staticmethod
    def _note(backlog: Backlog, homes: Mapping[int, Path]) -> None:
        for place, path in homes.items():
            note = msgspec.structs.replace(backlog, place=place)
            replace_file(path / RECOVERING / _NOTE, msgspec.json.encode(note) + b"\n")
            sync_directory(path / RECOVERING)

    def _notes(self) -> Iterator[tuple[Path, Backlog]]:
        """Recoveries that were not finished, each once, by where the first note of it is."""
        seen: set[UUID] = set()
        for path in self._paths:
            note = _noted(path)
            if note is not None and note.recovery not in seen:
                seen.add(note.recovery)
                yield path, note

    def _homes(self, backlog: Backlog) -> dict[int, Path]:
        """By place, the directories that have a note of this recovery: they may have been moved since."""
        found = ((path, _noted(path)) for path in self._paths)
        return {note.place: path for path, note in found if note is not None and note.recovery == backlog.recovery}

    def _checked(self, begun: Backlog) -> Backlog:
        homes = self._homes(begun)
        missing = [told for place, told in enumerate(begun.directories) if place not in homes]
        if missing:
            raise RecoveryIncomplete(
                f"a recovery of {len(begun.directories)} directories was begun and not finished; give all of them, "
                f"also {', '.join(missing)}"
            )
        for file in begun.files:
            path = homes[file.place] / RECOVERING / file.name
            if not path.is_file() or path.stat().st_size != file.size_bytes:
                raise RecoveryChanged(
                    f"{path} is part of a recovery that was begun, and is not what it was then; put it back"
                )
        return begun

    def _take_over(self) -> None:
        for path in self._paths:
            aside = path / RECOVERING
            aside.mkdir(exist_ok=True)
            spill_files.take(spill_files.files_in(path), aside)
            for progress in list(path.glob(f"*{_PROGRESS}")):
                progress.replace(aside / progress.name)
            # Those of Queen MQ wait there for another try, and have the lines that they had.
            spill_files.take((each for each in spill_files.files_in(path / "failed") if queen.is_of_queen(each)), aside)
            for directory in (aside, path / "failed", path):
                sync_directory(directory)

    def _waiting(self, ledger: Ledger) -> list[BacklogFile]:
        found = [
            (place, each) for place, path in enumerate(self._paths) for each in spill_files.files_in(path / RECOVERING)
        ]
        files = [
            BacklogFile(place, each.name, each.stat().st_size, 0, spill_files.time_ms(each))
            for place, each in sorted(
                spill_files.without_copies(found),
                key=lambda pair: (pair[0], spill_files.time_ms(pair[1]), pair[1].name),
            )
        ]
        paths = {file.id: self._paths[file.place] / RECOVERING / file.name for file in files if file.id is not None}
        stored = ledger.stored_lines(paths)
        return [self._from_where_it_is(file, stored) for file in files]

    def _from_where_it_is(self, file: BacklogFile, stored: Mapping[UUID, int]) -> BacklogFile:
        first_line = 0 if file.id is None else stored.get(file.id, 0)
        noted = line_numbers(self._paths[file.place] / "failed" / file.name)
        set_aside = sorted(number for number in noted if number > first_line)
        return msgspec.structs.replace(file, first_line=first_line, set_aside=set_aside)

    def _give_back(self, backlog: Backlog, ledger: Ledger) -> None:
        homes = self._homes(backlog)
        for path in homes.values():
            aside, stored = path / RECOVERING, path / RECOVERED
            stored.mkdir(exist_ok=True)
            for each in spill_files.files_in(aside):
                spill_files.put(each, stored)
            for progress in aside.glob(f"*{_PROGRESS}"):
                progress.unlink()
            (aside / LOCK).unlink(missing_ok=True)
            sync_directory(stored)
            sync_directory(path)
            # Last: while it is there, somebody comes back and moves the rest.
            (aside / _NOTE).unlink()
            sync_directory(aside)
        absent = [told for place, told in enumerate(backlog.directories) if place not in homes]
        if all(Path(told) in self._paths for told in absent):
            # No directory has a note any more. Whoever still had one would take the recovery for one never begun.
            ledger.forget(backlog.recovery)


def noted_lines(file: UUID, path: Path) -> int:
    """How many lines of a file a cluster's spill has noted as stored. Raises `DataDirectoryError`."""
    note = progress_path(path.parent, file)
    try:
        return msgspec.json.decode(note.read_bytes(), type=Progress).done
    except FileNotFoundError:
        return 0
    except msgspec.MsgspecError as error:
        raise DataDirectoryError(
            f"{note} is damaged and does not say how many lines are stored; start its broker, which finds out from its "
            "log and stores the rest of that file"
        ) from error


def _noted(path: Path) -> Backlog | None:
    note = path / RECOVERING / _NOTE
    try:
        return msgspec.json.decode(note.read_bytes(), type=Backlog)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise RecoveryChanged(f"{note} cannot be read: {error}") from error
