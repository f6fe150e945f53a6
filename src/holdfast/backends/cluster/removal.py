"""A node that was taken out of its cluster: it notes that, and begins anew when it is started again.

`removed.json` in the data directory says by whom this node was told, and with which life it was removed::

    {"life": "19e2…", "told_by": "n1"}

It is written, synced, before the node says anything about it. From then on this process takes part in nothing and
refuses its clients. A machine that reboots is nobody's wish to have it back: it is started again only with `join` in
its settings (one that is told as soon as it is started with that need not be started once more). Then it begins a new
life and deletes the note, in that order, and asks to be let in as a newcomer. Its logs stay: what they have in common
with the cluster's need not be sent again, what they do not is cut off by the consensus, as it is on any learner, and a
log whose topic is gone goes with it. Crash cases: the note is absent, and the node is told again; the life is new and
the note still there, then the life is new once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.model.errors import DataDirectoryError
from holdfast.model.member_errors import NodeRemoved
from holdfast.storage.directory import DataDirectory
from holdfast.storage.durable import replace_file, sync_directory

log = structlog.get_logger("holdfast.cluster")

FILE_NAME: Final = "removed.json"


class Removal(msgspec.Struct, frozen=True):
    life: str
    told_by: str


def note(directory: DataDirectory, told_by: str) -> None:
    """Durable on return. Raises `OSError`."""
    replace_file(directory.path / FILE_NAME, msgspec.json.encode(Removal(directory.life, told_by)) + b"\n")
    sync_directory(directory.path)


def was_removed(path: Path) -> bool:
    return (path / FILE_NAME).exists()


def begin_again(directory: DataDirectory, now_ms: int, *, joins: bool) -> None:
    """Be somebody else, if this node was removed before it was started. Raises `NodeRemoved`, `DataDirectoryError`."""
    if not was_removed(directory.path):
        return
    if not joins:
        raise NodeRemoved(
            f"{directory.identity.node} was taken out of its cluster, and stays out; to have it back, start it with "
            "--join HOST:PORT, where any node of the cluster listens for peers"
        )
    before = directory.life
    try:
        directory.begin_new_life(now_ms)
        (directory.path / FILE_NAME).unlink()
        sync_directory(directory.path)
    except OSError as error:
        raise DataDirectoryError(
            f"cannot use {directory.path}: {error.strerror}; check room and permissions"
        ) from error
    log.warning("back_after_removal", life=directory.life, removed_as=before, hint="it asks to be let in as a newcomer")
