"""Examining a data directory: every batch, every index, the state file, and whether they fit together.

`examine` changes nothing, not even a modification time. `repair` does two things, both of which a broker
would do itself at its next start, and by the same code: it cuts a torn tail and rebuilds an index. Damage to
acknowledged messages is told and never touched, since somebody may have a copy or may want to look.

Whoever calls holds the directory with `held`. Where a broker runs (`in_use`), what it has half written would
look torn, and is left out of the findings.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from holdfast.model.errors import DataDirectoryError
from holdfast.model.ids import Offset
from holdfast.model.names import is_internal, path_part
from holdfast.model.topics import Topic
from holdfast.storage import ids_file
from holdfast.storage.examine_log import cut_torn_tail, examine_log, rebuild_index
from holdfast.storage.examine_state import STATE_FILE, State, examine_identity, examine_state
from holdfast.storage.examined import NOTES, Finding, Kind, Report
from holdfast.storage.recovery import unfinished_reset
from holdfast.storage.segment import Segment

__all__ = [
    "NOTES",
    "Finding",
    "InUse",
    "Kind",
    "OnProgress",
    "Report",
    "examine",
    "held",
    "is_data_directory",
    "repair",
]

OnProgress = Callable[[int, int], None]


class InUse(DataDirectoryError):
    """A broker runs here, or somebody repairs."""


@contextlib.contextmanager
def held(directory: Path, *, for_repair: bool = False) -> Iterator[None]:
    """Keep brokers away while looking, and everybody while repairing. Raises `InUse` if that is too late."""
    try:
        lock_fd = os.open(directory / "holdfast.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # never served from, or a copy without its lock: nobody to keep away
        yield
        return
    except OSError as error:
        raise DataDirectoryError(f"cannot open {directory / 'holdfast.lock'}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock_fd, (fcntl.LOCK_EX if for_repair else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise InUse(f"{directory} is in use by a broker (process {owner}); stop it first") from None
        yield
    finally:
        os.close(lock_fd)


def examine(directory: Path, *, in_use: bool = False, on_progress: OnProgress = lambda done, total: None) -> Report:
    """Look at everything. Raises `DataDirectoryError` if this is no data directory, or another version's."""
    return _Examiner(directory, in_use, on_progress).run()


def is_data_directory(directory: Path) -> bool:
    """Whether a broker keeps its messages here, as far as one can see from the names."""
    return (directory / "holdfast.json").exists() or (directory / "topics").is_dir()


def repair(directory: Path, report: Report) -> None:
    """Cut torn tails and rebuild bad indexes; each finding says what was done. Needs `held`."""
    for finding in report.findings:
        path = directory / finding.file
        try:
            if finding.kind is Kind.TORN_TAIL:
                cut_bytes = cut_torn_tail(path)
                finding.repaired = f"cut {cut_bytes} bytes; the file now ends at byte {path.stat().st_size}"
            elif finding.kind is Kind.BAD_INDEX:
                rebuild_index(path)
                finding.repaired = "rebuilt from its segment"
        except OSError as error:
            finding.detail += f"; repairing failed: {error.strerror}"


class _Examiner:
    """One examination under way."""

    def __init__(self, directory: Path, in_use: bool, on_progress: OnProgress) -> None:
        self.report = Report(directory=str(directory), in_use=in_use)
        self._directory = directory
        self._in_use = in_use
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = 0
        self._ends: dict[tuple[str, int], Offset] = {}
        self._is_state_complete = True

    def run(self) -> Report:
        examine_identity(self._directory, self.report)
        topics = self._directory / "topics"
        paths = sorted(path for path in topics.iterdir() if path.is_dir()) if topics.is_dir() else []
        self._total_bytes = sum(_size(log) for path in paths for log in path.glob("*/*.log"))
        state = examine_state(self._directory, self.report, has_topics=bool(paths))
        control_end = self._control()
        # A broker that was killed leaves a state that the next start brings up to date from the control log.
        self._is_state_complete = state is not None and state.applied >= control_end
        for path in paths:
            with self.report.going_on(path):
                self._topic(path, state)
        if state is not None and self._is_state_complete and not self._in_use:
            self._what_state_misses(state)
        self._on_progress(self._total_bytes, self._total_bytes)
        return self.report

    def _on_bytes(self, count: int) -> None:
        # A log that grows while it is read, or a segment that is read twice, is no more than everything.
        self._done_bytes = min(self._done_bytes + count, self._total_bytes)
        self._on_progress(self._done_bytes, self._total_bytes)

    def _control(self) -> int:
        """Examine the control log; returns its last entry."""
        path = self._directory / "control"
        if not path.is_dir():
            return 0
        with self.report.going_on(path):
            examine_log(path, self.report, self._on_bytes, is_opened=True)
        newest = max((child for child in path.iterdir() if Segment.is_segment(child)), default=None)
        return 0 if newest is None else Segment(newest).verify(sealed=False).next_index - 1

    def _topic(self, path: Path, state: State | None) -> None:
        name = unquote(path.name)
        known = state.topics.get(name) if state is not None else None
        numbers = sorted(int(child.name) for child in path.iterdir() if child.name.isdigit() and child.is_dir())
        if state is not None and known is None and self._is_state_complete and not self._in_use:
            if not any(_size(log) for log in path.glob("*/*.log")):
                self.report.found(Kind.STRAY_FILE, path, "an empty topic whose creation was not finished")
                return
            self.report.found(Kind.TOPIC_NOT_IN_STATE, path, f"{len(numbers)} partitions hold messages")
        self.report.topics += 1
        described = self._topic_file(path / "topic.json")
        # A broker opens the partitions that the state knows, or else the topic's own file.
        config = known or (described.config if described is not None else None)
        for number in numbers:
            is_opened = config is None or number < config.partitions
            with self.report.going_on(path / str(number)):
                self._partition(path / str(number), is_opened=is_opened)
        for number in range(known.partitions if known is not None else 0):
            if number not in numbers:
                self.report.found(Kind.PARTITION_MISSING, path / str(number), "state.sqlite knows this partition")

    def _topic_file(self, file: Path) -> Topic | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=Topic)
        except (OSError, msgspec.MsgspecError) as error:
            self.report.found(Kind.TOPIC_FILE_BAD, file, str(getattr(error, "strerror", None) or error))
            return None

    def _partition(self, path: Path, *, is_opened: bool) -> None:
        self.report.partitions += 1
        beginning = unfinished_reset(path)
        if beginning is not None:
            # Whatever else is here was given up; looking at it would only alarm.
            self.report.found(Kind.STRAY_FILE, beginning, "the log begins anew here; the next start finishes that")
            return
        children = sorted(path.iterdir())
        names = {child.stem for child in children if Segment.is_segment(child)}
        for child in children:
            if self._in_use and child.suffix == ".tmp":  # an index that is just being written
                continue
            if child.name == ids_file.FILE:
                self._ids(path)
            elif child.suffix not in (".log", ".index") or child.stem not in names:
                self.report.found(Kind.STRAY_FILE, child, "no segment and no index of one")
        end = examine_log(path, self.report, self._on_bytes, is_opened=is_opened)
        if end is not None:
            self._ends[unquote(path.parent.name), int(path.name)] = end

    def _ids(self, path: Path) -> None:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            ids_file.read_ids(directory)
        except ids_file.IdsDamaged:
            detail = "ids of deleted messages are lost; such a message is stored again if it is sent again"
            self.report.found(Kind.IDS_DAMAGED, path / ids_file.FILE, detail)
        finally:
            os.close(directory)

    def _what_state_misses(self, state: State) -> None:
        for topic, config in state.topics.items():
            path = self._directory / "topics" / path_part(topic)
            if not path.is_dir():
                detail = f"state.sqlite knows this topic of {config.partitions} partitions"
                self.report.found(Kind.PARTITION_MISSING, path, detail)
        for topic, name, partition, offset in state.cursors:
            end = self._ends.get((topic, partition))
            # Positions of internal topics count other things than messages of their partitions.
            if end is not None and offset > end and not is_internal(topic):
                detail = f"{name} stands at {offset} in {topic}/{partition}, which ends at {end}"
                self.report.found(Kind.CURSOR_BEYOND_END, self._directory / STATE_FILE, detail)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
