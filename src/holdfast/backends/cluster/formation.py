"""How nodes become a cluster, and how one of them knows who it is in it.

`cluster.json` in the data directory says which cluster this is and who founded it::

    {"cluster": "5c1f…", "founders": {"n1": "1a2b…", "n2": "3c4d…", "n3": "5e6f…"}, "went_alone": ["n1.0192…"]}

Each node is given with the life of its disk. The file is written to a temporary name, synced and renamed, before
the node takes part in anything. Crash case: it is absent, and the node has not voted yet.

`went_alone` is there only if the cluster may shrink to one node (`shrinking.py`). A node adds a mark before it goes on
without a majority, and every node it meets afterwards takes over its list. Two nodes of which each has a mark that the
other lacks have both acknowledged messages alone. Their logs cannot be joined, so they refuse each other. Crash case:
the mark is there, and the node has not gone on alone. That does no harm, because others take it over all the same.

- A node without peers founds a cluster of one, at once.
- Nodes with peers found a cluster when all of them are there and none of them has one: each computes the same
  file from who they are. If only most of them were needed, two that lost their disks could forget the third.
- A node that is told to join founds nothing: it takes the file of whoever it is told of, in which it is not named,
  and asks to be let in (`joining.py`). The file says who founded the cluster, not who belongs to it now.
- A node that finds a peer which has a cluster joins that one. It votes there if it is a founder with the same
  disk (it was just late), and otherwise not until it is let in: that is a node which lost its disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.consensus.members import Members
from holdfast.consensus.replica_names import replica_id
from holdfast.model.errors import DataDirectoryError
from holdfast.storage.durable import replace_file, sync_directory

FILE_NAME: Final = "cluster.json"
# A node that was away while so many marks were made is refused, and has to begin with an empty directory.
_MARKS_MAX: Final = 16


class Formation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which cluster, and its founders with the lives of their disks."""

    cluster: str
    founders: dict[str, str]
    went_alone: tuple[str, ...] = ()

    @property
    def members(self) -> Members:
        return Members.of(replica_id(node, life) for node, life in self.founders.items())

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def after_going_alone(self, mark: str) -> Formation:
        return msgspec.structs.replace(self, went_alone=(*self.went_alone, mark)[-_MARKS_MAX:])

    def is_continued_by(self, other: Formation) -> bool:
        """Whether the other one has the newest mark that is here, and so all of them."""
        return not self.went_alone or self.went_alone[-1] in other.went_alone


def founded_by(founders: Mapping[str, str]) -> Formation:
    """What all of the founders come to on their own."""
    ordered = dict(sorted(founders.items()))
    digest = hashlib.sha256(msgspec.json.encode(ordered)).hexdigest()
    return Formation(digest[:16], ordered)


def decode(content: bytes) -> Formation:
    """Raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(content, type=Formation)


def load(directory: Path) -> Formation | None:
    """`None` for a node that belongs to no cluster yet. Raises `DataDirectoryError`."""
    file = directory / FILE_NAME
    try:
        return decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirectoryError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise DataDirectoryError(
            f"{file} is damaged ({error}); copy it from another node of the cluster, or move it away if there is none"
        ) from error


def save(directory: Path, formation: Formation) -> None:
    """Durable on return. Raises `DataDirectoryError`."""
    try:
        replace_file(directory / FILE_NAME, formation.encode() + b"\n")
        sync_directory(directory)
    except OSError as error:
        raise DataDirectoryError(f"cannot write {directory / FILE_NAME}: {error.strerror}") from error
