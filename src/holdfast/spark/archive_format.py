"""What an archive is: which Parquet files count, and which offsets they hold, as a log of commits.

The rows of an archive lie in files that are written once and never changed. Which of them count is said by commits,
numbered from 1 on. A commit adds files, replaces files by others with the same rows, and moves the ends of partitions:
rows and progress change together, so a commit that is there is the whole truth, and one that is not never happened.

The state behind a commit is a function of the commits up to it (`State.after`)::

    {"version": 7, "time_ms": 1789000000000, "kind": "batch",
     "added": [{"path": "00000000000000000007-3f2a/…/part-0.parquet", "topic": "orders", "date": "2026-11-18",
                "hour": 5, "rows": 60000, "size_bytes": 4100200}],
     "replaced": [], "forgotten": [],
     "topics": {"orders": {"created_ms": 1789000000000, "partitions": {"0": {"start": 0, "end": 60000, "gaps": []}}}}}

- `start` is where the archive of a partition begins, `end` the next offset to be archived. Every offset between them is
  in exactly one row of the files that count, except those in `gaps` (pairs of first offset and end): nobody had them
  any more, and somebody allowed to go on. `created_ms` tells a topic from another that had its name before.
- `replaced` files count no longer. They stay readable for a while, for queries that were planned with them, and are
  `forgotten` by a later commit, and then deleted.
- `gone`, where it is there, are all topics of which every broker has said that they were deleted: nobody is asked
  again, so that the archive of the others goes on while a broker is away.
- a commit of the kind `note` has no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

# What an older version could not read, such as another kind of commit, needs another number once this one was released.
FORMAT: Final = 1
Kind = Literal["batch", "compaction", "note"]


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file; `path` is relative to the directory of files."""

    path: str
    topic: str
    date: str
    hour: int
    rows: int
    size_bytes: int


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """Which offsets of a partition are archived."""

    start: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        return self.end - self.start - sum(end - first for first, end in self.gaps)


class ArchivedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What is archived of a topic; `partitions` by their numbers."""

    created_ms: int
    partitions: dict[int, Extent]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an archive."""

    version: int
    time_ms: int
    kind: Kind
    added: tuple[ArchivedFile, ...] = ()
    replaced: tuple[ArchivedFile, ...] = ()
    forgotten: tuple[str, ...] = ()
    topics: dict[str, ArchivedTopic] = {}
    gone: tuple[str, ...] | None = None
    format: int = FORMAT


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that counts behind a commit; of `retired` files, when they were replaced."""

    version: int = 0
    files: dict[str, ArchivedFile] = {}
    retired: dict[str, int] = {}
    topics: dict[str, ArchivedTopic] = {}
    gone: tuple[str, ...] = ()
    format: int = FORMAT

    def after(self, commit: Commit) -> State:
        """The state behind the next commit."""
        assert commit.version == self.version + 1, f"commit {commit.version} does not follow {self.version}"
        replaced = {file.path for file in commit.replaced}
        assert replaced <= self.files.keys(), "only what counts can be replaced"
        files = {path: file for path, file in self.files.items() if path not in replaced}
        files |= {file.path: file for file in commit.added}
        forgotten = set(commit.forgotten)
        retired = {path: at_ms for path, at_ms in self.retired.items() if path not in forgotten}
        retired |= dict.fromkeys(replaced, commit.time_ms)
        topics = dict(self.topics)
        for name, topic in commit.topics.items():
            known = topics.get(name)
            assert known is None or known.created_ms == topic.created_ms, f"{name} is another topic now"
            partitions = {**(known.partitions if known is not None else {}), **topic.partitions}
            topics[name] = ArchivedTopic(created_ms=topic.created_ms, partitions=partitions)
        gone = self.gone if commit.gone is None else commit.gone
        return State(version=commit.version, files=files, retired=retired, topics=topics, gone=gone)


def extended(known: Extent | None, start: int, end: int, missing: tuple[tuple[int, int], ...] = ()) -> Extent:
    """What is archived of a partition once the offsets from `start` to `end` are; `missing` ones of these had nobody.

    What lies between the known end and `start` had nobody either.
    """
    if known is None:
        return Extent(start=start, end=end, gaps=missing)
    assert known.end <= start <= end, f"{start} to {end} is to be archived behind {known.end}"
    between = ((known.end, start),) if start > known.end else ()
    return Extent(start=known.start, end=end, gaps=(*known.gaps, *between, *missing))


def replayed(state: State, commits: Mapping[int, Commit]) -> State:
    """The state behind all commits that follow one another."""
    while (following := commits.get(state.version + 1)) is not None:
        state = state.after(following)
    return state
