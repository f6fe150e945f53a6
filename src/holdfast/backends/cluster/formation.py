"""How nodes become a cluster, and how one of them knows who it is in it.

`cluster.json` in the data directory says which cluster this is and who founded it::

    {"cluster": "5c1f…", "founders": {"n1": "1a2b…", "n2": "3c4d…", "n3": "5e6f…"}}

Each node is given with the life of its disk. It is written once, to a temporary name, synced and renamed, before
the node takes part in anything. Crash case: it is absent, and the node has not voted yet.

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


class Formation(msgspec.Struct, frozen=True):
    """Which cluster, and its founders with the lives of their disks."""

    cluster: str
    founders: dict[str, str]

    @property
    def members(self) -> Members:
        return Members.of(replica_id(node, life) for node, life in self.founders.items())

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


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
        raise DataDirectoryError(f"{file} is damaged ({error}); copy it from another node of the cluster") from error


def save(directory: Path, formation: Formation) -> None:
    """Durable on return. Raises `DataDirectoryError`."""
    try:
        replace_file(directory / FILE_NAME, formation.encode() + b"\n")
        sync_directory(directory)
    except OSError as error:
        raise DataDirectoryError(f"cannot write {directory / FILE_NAME}: {error.strerror}") from error
